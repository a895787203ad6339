"""What is known of the engines' logs, as data: phases and markers, failures, experiments. Loads tables; judges nothing.

A table's row holds for one engine ("any" = for all) and, with `versions`, for some of its releases.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from eyas.contract.engines.version import matches
from eyas.serve.facts.state import Experiment, ModelRole


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRule:
    """A phase and how long it may show nothing.

    Attributes:
        quiet_s: without any evidence of progress. busy_s: with only weak evidence (CPU, GPU utilisation).
        strong: evidence that counts as progress in this phase, beyond the usual.
    """

    id: str
    title: str
    quiet_s: float
    busy_s: float
    strong: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """One line that means something; the fields are described at the top of `markers.toml`."""

    engine: str
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRule:
    """A progress bar's label and the phase that it belongs to."""

    engine: str
    label: re.Pattern[str]
    phase: str
    unit: str
    role: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerTable:
    """The rows that hold for one engine and version, in file order."""

    phases: Mapping[str, PhaseRule]
    markers: tuple[Marker, ...]
    progress: tuple[ProgressRule, ...]
    ignored: tuple[re.Pattern[str], ...]
    order: tuple[str, ...] = field(default=())

    def find(self, message: str) -> tuple[Marker, re.Match[str]] | None:
        """The first marker whose pattern is in `message`."""
        for marker in self.markers:
            match = marker.pattern.search(message)
            if match is not None:
                return marker, match
        return None

    def proves_nothing(self, message: str) -> bool:
        """An access log, a heartbeat of waiting: a new line that is no progress."""
        return any(pattern.search(message) for pattern in self.ignored)


def table_for(engine: str, version: str | None) -> MarkerTable:
    """The table of an engine and version; with engine "unknown" the rows of all engines."""
    data = _data()
    phases = {row["id"]: PhaseRule(**{**row, "strong": frozenset(row.get("strong", ()))}) for row in data["phase"]}
    return MarkerTable(
        phases=phases,
        order=tuple(phases),
        markers=tuple(_markers(data["marker"], engine, version)),
        progress=tuple(
            ProgressRule(**{**row, "label": re.compile(row["label"])})
            for row in data["progress"]
            if _applies(row, engine)
        ),
        ignored=tuple(re.compile(row["pattern"]) for row in data["ignore"]),
    )


def engine_of_line(message: str) -> str | None:
    """Which engine prints this line, if only one does ("sglang", "vllm")."""
    engines = {m.engine for m in _all_markers() if m.engine != "any" and m.pattern.search(message)}
    return engines.pop() if len(engines) == 1 else None


def _markers(rows: Iterable[dict[str, Any]], engine: str, version: str | None) -> Iterable[Marker]:
    for row in rows:
        if _applies(row, engine) and matches(version, row.get("versions", "")):
            yield Marker(**{**row, "pattern": re.compile(row["pattern"])})


def _applies(row: Mapping[str, Any], engine: str) -> bool:
    return row["engine"] in ("any", engine) or engine == "unknown"


@cache
def _all_markers() -> tuple[Marker, ...]:
    return tuple(_markers(_data()["marker"], "unknown", None))


@cache
def _data() -> dict[str, Any]:
    return _table("markers.toml")


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files("eyas.serve").joinpath(name).read_text(encoding="utf-8"))


# ---------------------------------------------------------------------- failures


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFailure:
    """One row; the fields are described at the top of `known_failures.toml`."""

    code: str
    engine: str
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


@cache
def known_failures() -> tuple[KnownFailure, ...]:
    """All rows in file order."""
    rows = _table("known_failures.toml")["failure"]
    return tuple(KnownFailure(**{**row, "pattern": re.compile(row["pattern"])}) for row in rows)


def failure_of(code: str) -> KnownFailure:
    """The row of a code that is known to be there."""
    return next(row for row in known_failures() if row.code == code)


def find_failure(text: str, engine: str, *, anywhere: bool = False) -> tuple[KnownFailure, re.Match[str]] | None:
    """The first row that matches `text`; with `anywhere`, only rows that hold outside a traceback too."""
    for row in known_failures():
        applies = row.engine in ("any", engine) or engine == "unknown"
        if applies and (row.anywhere or not anywhere) and (match := row.pattern.search(text)) is not None:
            return row, match
    return None


# ---------------------------------------------------------------------- experiments


def experiments_for(kind: str, role: ModelRole | None, engine: str, version: str | None) -> tuple[Experiment, ...]:
    """What to try, cheapest first, each changing one variable of the start that stalled."""
    return tuple(_experiment(row) for row in _rows() if _fits(row, kind, role, engine, version))


def spec_config_of(experiment: Experiment) -> dict[str, Any]:
    """Keys that the experiment wants in vLLM's --speculative-config (empty for the others)."""
    row = next(row for row in _rows() if row["id"] == experiment.id)
    return dict(row.get("spec_config", {}))


def _fits(row: dict[str, Any], kind: str, role: ModelRole | None, engine: str, version: str | None) -> bool:
    return (
        kind in row["kinds"]
        and row["engine"] in ("any", engine)
        and matches(version, row.get("versions", ""))
        and (role is None or role in row.get("roles", (role,)))
    )


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


@cache
def _rows() -> tuple[dict[str, Any], ...]:
    return tuple(_table("experiments.toml")["experiment"])
