"""What is known of the engines' logs, as data: phases and markers, failures, experiments, stack frames.

Each engine's tables lie in its own folder (`ServingEngine.folder`); what holds for all lies beside this file. The
engine's rows come first, those that are mere echoes of another failure last. With `versions` a row holds for some
releases only. Loads tables; judges nothing.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from eyas.contract.engines.registry import ENGINES, all_engines, engine_named
from eyas.contract.engines.version import matches
from eyas.serve.facts.state import Experiment, ModelRole

_MAX_MATCHED, _MAX_TRACEBACK = 2000, 20_000  # characters: what a server or a log hands us may have no end


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """How an engine lives and dies; the defaults are those of an engine that is not known.

    Attributes:
        title: as people write it.
        process: pattern of its process titles; group `role` is the label, `ranks` a better one.
        ranks: labels of processes that are missed when they go. helpers: labels of processes that do no model work.
        owners: how a traceback's heading begins, and whose traceback it is.
        parents: what a parent process says of a child's death: never the cause.
        tidy_exit_codes: of an end after it was asked to and has drained.
        self_kill: exit code 137 in words when it ended itself. core_death: exit code 0 in words when its core died.
        health_503: what a 503 of /health means in any phase; "" = while it starts, it is warming up.
        constant_health_s: a good /health that comes faster does not look at the engine; 0 = it never does more.
        log_rounds: verify passes of one request between two of its lines about decoding.
        requests: pattern of the lines that serving prints, other than access logs.
        facts: what a launch says of itself: name -> pattern whose first group is the value (num_draft_tokens, topk,
            log_rounds, version, max_running, capped; graphs_off, prefix_cache_off and overlap_off where they match).
    """

    title: str = "the engine"
    process: str = ""
    ranks: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()
    owners: Mapping[str, str] | None = None
    parents: tuple[str, ...] = ()
    tidy_exit_codes: tuple[int, ...] = (0,)
    self_kill: str = "the engine killed itself after a child failed"
    core_death: str = "the engine core died"
    health_503: str = ""
    constant_health_s: float = 0.0
    log_rounds: int = 0
    requests: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRule:
    """A phase and how long it may show nothing.

    Attributes:
        quiet_s: without any evidence of progress. busy_s: with only weak evidence (CPU, GPU utilisation).
        next: what to do where a log ends in it. strong: evidence that counts as progress in it, beyond the usual.
    """

    id: str
    title: str
    quiet_s: float
    busy_s: float
    next: str = ""
    strong: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """One line that means something; the fields are described at the top of `markers.toml`."""

    id: str
    pattern: re.Pattern[str]
    event: str
    phase: str = ""
    role: str = ""
    detail: str = ""
    sets: str = ""
    says: str = ""
    versions: str = ""
    restarts: bool = False
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRule:
    """A progress bar's label and the phase that it belongs to."""

    label: re.Pattern[str]
    phase: str
    unit: str
    role: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFailure:
    """One way to die; the fields are described at the top of `failures.toml`."""

    code: str
    pattern: re.Pattern[str]
    what: str
    why: str
    do: str
    source: str
    anywhere: bool = False
    collateral: bool = False

    def says(self, match: re.Match[str] | None) -> tuple[str, str, str]:
        """`what`, `why`, `do` with the match's groups filled in."""
        groups = {name: value or "" for name, value in match.groupdict().items()} if match is not None else {}
        what, why, do = (text.format_map(_Blank(groups)) for text in (self.what, self.why, self.do))
        return re.sub(r"\s*\(\s*\)|\s+$", "", what), why, do


class _Blank(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "{" + key + "}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTable:
    """The rows that hold for one engine and version, in the order in which they are tried."""

    life: Life
    phases: Mapping[str, PhaseRule]
    order: tuple[str, ...]
    markers: tuple[Marker, ...]
    progress: tuple[ProgressRule, ...]
    ignored: tuple[re.Pattern[str], ...]
    quotes: tuple[re.Pattern[str], ...]
    failures: tuple[KnownFailure, ...]
    parents: re.Pattern[str]

    def find(self, message: str) -> tuple[Marker, re.Match[str]] | None:
        """The first marker whose pattern is in `message` (in its first 2000 characters, as everywhere here)."""
        message = message[:_MAX_MATCHED]
        for marker in self.markers:
            match = marker.pattern.search(message)
            if match is not None:
                return marker, match
        return None

    def proves_nothing(self, message: str) -> bool:
        """An access log, a heartbeat of waiting: a new line that is not progress."""
        return any(pattern.search(message[:_MAX_MATCHED]) for pattern in self.ignored)

    def quotes_users(self, message: str) -> bool:
        """An access log or the log of a request: what is in it was written by users, and proves nothing."""
        return any(pattern.search(message[:_MAX_MATCHED]) for pattern in self.quotes)

    def find_failure(self, text: str, *, anywhere: bool = False) -> tuple[KnownFailure, re.Match[str]] | None:
        """The first failure that `text` tells of; with `anywhere`, only those that hold outside a traceback too."""
        text = text[: _MAX_MATCHED if anywhere else _MAX_TRACEBACK]
        for row in self.failures:
            if (row.anywhere or not anywhere) and (match := row.pattern.search(text)) is not None:
                return row, match
        return None


def table_for(engine: str, version: str | None) -> LogTable:
    """The table of an engine and version; of an engine that is not in the registry ("unknown"), the rows of all."""
    phases = {
        row["id"]: PhaseRule(**{**row, "strong": frozenset(row.get("strong", ()))})
        for row in _table(_COMMON, "markers.toml")["phase"]
    }
    markers = (row for row in _rows("markers.toml", "marker", engine) if matches(version, row.get("versions", "")))
    life = life_of(engine)
    every = [life_of(name) for name in _names(engine)]
    parents = [*_ALL_PARENTS, *(pattern for one in every for pattern in one.parents)]
    return LogTable(
        life=life,
        phases=phases,
        order=tuple(phases),
        markers=tuple(Marker(**_compiled(row, "pattern")) for row in markers),
        progress=tuple(ProgressRule(**_compiled(row, "label")) for row in _rows("markers.toml", "progress", engine)),
        ignored=tuple(re.compile(row["pattern"]) for row in _rows("markers.toml", "ignore", engine)),
        quotes=tuple(re.compile(row["pattern"]) for row in _rows("markers.toml", "quote", engine)),
        failures=_failures(_names(engine)),
        parents=re.compile("|".join(parents)),
    )


@cache
def life_of(engine: str) -> Life:
    """The `[life]` of an engine; one that is not in the registry has the defaults."""
    if engine not in ENGINES:
        return Life()
    found = engine_named(engine)
    row = _table(found.folder, "markers.toml").get("life", {})
    listed = {name: tuple(value) for name, value in row.items() if isinstance(value, list)}
    return Life(**{"title": found.releases.title, **row, **listed})


@cache
def all_lives() -> tuple[Life, ...]:
    """Of every engine, in the order of the registry."""
    return tuple(life_of(name) for name in ENGINES)


@cache
def line_prefixes() -> tuple[Mapping[str, str], ...]:
    """What engines print before their messages, in the order in which it is tried."""
    return tuple(row for name in ENGINES for row in _table(engine_named(name).folder, "markers.toml").get("prefix", ()))


def engine_of_line(message: str) -> str | None:
    """Which engine prints this line, if only one does."""
    message = message[:_MAX_MATCHED]
    found = [name for name, patterns in _own_patterns() if any(pattern.search(message) for pattern in patterns)]
    return found[0] if len(found) == 1 else None


@cache
def _own_patterns() -> tuple[tuple[str, tuple[re.Pattern[str], ...]], ...]:
    return tuple(
        (
            engine.name,
            tuple(re.compile(row["pattern"]) for row in _table(engine.folder, "markers.toml").get("marker", ())),
        )
        for engine in all_engines()
    )


# ---------------------------------------------------------------------- failures


@cache
def _failures(engines: tuple[str, ...]) -> tuple[KnownFailure, ...]:
    rows = [row for name in (*engines, "") for row in _table(_folder(name), "failures.toml").get("failure", ())]
    return tuple(KnownFailure(**_compiled(row, "pattern")) for row in sorted(rows, key=lambda r: "collateral" in r))


def known_failures() -> tuple[KnownFailure, ...]:
    """All rows of all engines."""
    return _failures(tuple(ENGINES))


def failure_of(code: str) -> KnownFailure:
    """The row of a code that is known to be there."""
    return next(row for row in known_failures() if row.code == code)


# ---------------------------------------------------------------------- experiments


def experiments_for(kind: str, role: ModelRole | None, engine: str, version: str | None) -> tuple[Experiment, ...]:
    """What to try, cheapest first, each changing one variable of the start that stalled."""
    rows = _rows("experiments.toml", "experiment", engine if engine in ENGINES else "")
    return tuple(
        _experiment(row)
        for row in rows
        if kind in row["kinds"]
        and matches(version, row.get("versions", ""))
        and (role is None or role in row.get("roles", (role,)))
    )


def spec_config_of(experiment: Experiment) -> dict[str, Any]:
    """Keys that the experiment wants in vLLM's --speculative-config (empty for the others)."""
    rows = _rows("experiments.toml", "experiment", "unknown")
    return dict(next(row for row in rows if row["id"] == experiment.id).get("spec_config", {}))


def _experiment(row: dict[str, Any]) -> Experiment:
    flags = list(row.get("flags", ()))
    if "spec_config" in row:
        flags += [f"(in --speculative-config) {json.dumps(row['spec_config'])}"]
    return Experiment(
        id=row["id"],
        title=row["title"],
        add_flags=tuple(flags),
        add_env=dict(row.get("env", {})),
        tells=row["tells"],
    )


# ---------------------------------------------------------------------- stack frames


@cache
def frame_kinds() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """What a Python frame says of where a process stands: kinds in the order in which they are tried."""
    return _merged("frame", "kind")


@cache
def draft_frames() -> re.Pattern[str]:
    """Frames that work on the draft."""
    return dict(_merged("model", "role"))["draft"]


@cache
def kernel_waits() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """The same for what the kernel says of a thread."""
    return _merged("wchan", "kind")


def _merged(part: str, key: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    patterns: dict[str, list[str]] = {}
    for row in (*_table(_COMMON, "frames.toml")[part], *_rows("frames.toml", part, "unknown")):
        patterns.setdefault(row[key], []).append(row["pattern"])
    return tuple((name, re.compile("|".join(dict.fromkeys(parts)))) for name, parts in patterns.items())


# ---------------------------------------------------------------------- files

_COMMON = Path(__file__).parent
_ALL_PARENTS = ("KeyboardInterrupt|SystemExit|asyncio\\.exceptions\\.CancelledError|BrokenProcessPool",)


def _names(engine: str) -> tuple[str, ...]:
    return (engine,) if engine in ENGINES else tuple(ENGINES)


def _rows(file: str, part: str, engine: str) -> Iterator[dict[str, Any]]:
    """Rows of the engine (of all engines for an unknown one, of none for ""), then those that hold for every engine."""
    for name in (*(_names(engine) if engine else ()), ""):
        yield from _table(_folder(name), file).get(part, ())


def _folder(engine: str) -> Path:
    return engine_named(engine).folder if engine else _COMMON


def _table(folder: Path, file: str) -> dict[str, Any]:
    return _read(str(folder), file) if (folder / file).is_file() else {}


@cache
def _read(folder: str, file: str) -> dict[str, Any]:
    with open(f"{folder}/{file}", "rb") as table:
        return tomllib.load(table)


def _compiled(row: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {**row, key: re.compile(row[key])}
