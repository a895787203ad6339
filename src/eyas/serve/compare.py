"""Two runs side by side: what was changed between them, and where they part."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.serve.facts.clock import Clock, SystemClock
from eyas.serve.facts.evidence import ExitFacts, LogLine, Observation
from eyas.serve.facts.run_folder import RunFolder, read_document
from eyas.serve.facts.state import Engine
from eyas.serve.log.log_tail import open_log
from eyas.serve.log.tables import all_lives
from eyas.serve.supervise.supervisor import Supervisor
from eyas.talk import seconds

SCHEMA = "eyas.watch.compare/1"
_ACCESS_LOG = r'"(?:GET|POST|HEAD) /\S* HTTP/'
_CHANGING = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|[\d.]+|(?:/[\w.~+-]+)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run as read back: `lines` are its log lines; `phases` key -> seconds (None for the one it ended in).

    verdict: the first line of the first-minute verdict, "" if there was none.
    """

    path: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]
    engine: str
    version: str | None
    phases: Mapping[str, float | None]
    outcome: str
    reason: str
    lines: tuple[LogLine, ...]
    verdict: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDifference:
    """What differs. `parts_after`: the last phase that both reached; the two lines: where the logs first differ."""

    a: RunRecord
    b: RunRecord
    flags: tuple[str, ...]
    environment: tuple[str, ...]
    parts_after: str
    line_a: str
    line_b: str

    def as_document(self) -> dict[str, Any]:
        """The object of schema eyas.watch.compare/1."""
        keys = list(dict.fromkeys([*self.a.phases, *self.b.phases]))
        return {
            "schema": SCHEMA,
            "runs": [_run_document(self.a), _run_document(self.b)],
            "flags": list(self.flags),
            "environment": list(self.environment),
            "phases": [{"phase": key, "a_s": self.a.phases.get(key), "b_s": self.b.phases.get(key)} for key in keys],
            "parts_after": self.parts_after,
            "line_a": self.line_a,
            "line_b": self.line_b,
        }

    def __str__(self) -> str:
        rows = []
        for name, run in (("A", self.a), ("B", self.b)):
            rows.append(f"{name}: {run.path}: {run.outcome}: {run.reason}")
            rows += [f"   {run.verdict}"] if run.verdict and run.verdict not in run.reason else []
        rows.append("changed flags: " + ("; ".join(self.flags) or "none"))
        rows.append("changed environment: " + ("; ".join(self.environment) or "none"))
        rows.append(f"{'phase':<40} {'A':>10} {'B':>10}")
        for key in dict.fromkeys([*self.a.phases, *self.b.phases]):
            rows.append(f"{key:<40} {_cell(self.a.phases, key):>10} {_cell(self.b.phases, key):>10}")
        if self.line_a or self.line_b:
            rows.append(f"they part after: {self.parts_after or 'the very start'}; the first lines that differ:")
            rows += [f"  A: {self.line_a or '(its log ends)'}", f"  B: {self.line_b or '(its log ends)'}"]
        else:
            rows.append(f"their logs are alike up to the end (numbers, paths and requests aside): {self.parts_after}")
        return "\n".join(rows)


def compare(a: RunRecord, b: RunRecord) -> RunDifference:
    """What changed from A to B."""
    common = [key for key in a.phases if key in b.phases]
    line_a, line_b = first_difference(a.lines, b.lines)
    return RunDifference(
        a=a,
        b=b,
        flags=tuple(_mapping_changes(flags_of(a.command), flags_of(b.command))),
        environment=tuple(_mapping_changes(a.environment, b.environment)),
        parts_after=common[-1] if common else "",
        line_a=line_a,
        line_b=line_b,
    )


def load_run(
    path: Path, *, engine: Engine = "unknown", version: str | None = None, clock: Clock | None = None
) -> RunRecord:
    """A run folder or a bare log, read back through the same state machine.

    Raises:
        RunFolderUnreadable: a folder without launch.json and engine.log. LogUnreadable: no such log.
    """
    clock = clock or SystemClock()
    folder = RunFolder.open(path) if path.is_dir() else None
    launch = folder.read_launch() if folder is not None else {}
    engine = launch.get("engine", engine)
    tail = open_log(folder.log_path if folder is not None else path)
    lines = tail.read(clock.now(), is_open=False) + tail.read(clock.now())
    last = _document_of(folder, "last.json")
    watcher = Supervisor(
        engine=engine, version=launch.get("version") or version, probes=_Once(lines, last), clock=clock, log_only=True
    )
    snapshot = watcher.step()
    watcher.began_before(launch.get("at", snapshot.at))
    document = watcher.timeline_document()
    return RunRecord(
        path=path,
        command=tuple(launch.get("command", ())),
        environment=dict(launch.get("environment", {})),
        engine=watcher.engine,
        version=snapshot.version,
        phases={row["key"]: row["duration_s"] for row in document["phases"]},
        outcome=str(last.get("state", snapshot.state)),
        reason=str(last.get("reason", snapshot.reason)),
        lines=lines,
        verdict=str(_document_of(folder, "verdict.json").get("words", "")).partition("\n")[0],
    )


def recorded_verdict(run: Path) -> dict[str, Any] | None:
    """The first-minute verdict that `eyas serve` wrote into this run folder; None without a run or a verdict."""
    document = _document_of(RunFolder(run), "verdict.json")
    return dict(document) if document.get("words") else None


def flags_of(command: Sequence[str]) -> dict[str, str]:
    """--flag value, --flag=value and bare --flag as a mapping; other words count as the program."""
    flags: dict[str, str] = {}
    name = "program"
    for word in command:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            flags[name] = value
        else:
            flags[name] = f"{flags.get(name, '')} {shlex.quote(word)}".strip()
    return {name: value for flag, text in flags.items() for name, value in _flattened(flag, text)}


def _flattened(name: str, text: str) -> Iterator[tuple[str, str]]:
    """A flag whose value is a JSON object as one entry a key: --speculative-config.num_speculative_tokens."""
    try:
        value = json.loads("".join(shlex.split(text)) if text.startswith("'") else text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flattened(f"{name}.{key}", json.dumps(inner) if isinstance(inner, dict | list) else str(inner))
    else:
        yield name, text


def first_difference(a: Sequence[LogLine], b: Sequence[LogLine]) -> tuple[str, str]:
    """The first pair of lines that differ, numbers, paths and progress bars aside."""
    mine, theirs = _telling(a), _telling(b)
    for one, other in zip(mine, theirs, strict=False):
        if _form(one) != _form(other):
            return one.raw[:300], other.raw[:300]
    shorter = min(len(mine), len(theirs))
    return (mine[shorter].raw[:300] if len(mine) > shorter else ""), (
        theirs[shorter].raw[:300] if len(theirs) > shorter else ""
    )


@dataclass(slots=True)
class _Once:
    """Probes that show a whole log at once."""

    lines: tuple[LogLine, ...]
    last: Mapping[str, Any]

    def learn(self, engine: str, version: str | None) -> None:
        """There is no endpoint to ask."""

    def observe(self, now: float) -> Observation:
        ended = ExitFacts(code=None) if self.last.get("state") in ("crashed", "stopped") else None
        return Observation(at=now, lines=self.lines, exit=ended, log_life="over")


def _document_of(folder: RunFolder | None, name: str) -> Mapping[str, Any]:
    return read_document(folder.path / name) if folder is not None else {}


def _telling(lines: Sequence[LogLine]) -> list[LogLine]:
    """What a start prints: no bars, no requests (they differ from run to run)."""
    requests = re.compile("|".join([_ACCESS_LOG, *(life.requests for life in all_lives() if life.requests)]))
    return [line for line in lines if line.bar is None and line.level != "DEBUG" and not requests.search(line.message)]


def _form(line: LogLine) -> str:
    return _CHANGING.sub("#", line.message)


def _mapping_changes(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    changes = [f"{key}: {a[key] or 'set'} -> {b[key] or 'set'}" for key in a if key in b and a[key] != b[key]]
    changes += [f"{key} {a[key]}".strip() + " only in A" for key in a if key not in b]
    changes += [f"{key} {b[key]}".strip() + " only in B" for key in b if key not in a]
    return changes


def _cell(phases: Mapping[str, float | None], key: str) -> str:
    if key not in phases:
        return "-"
    value = phases[key]
    if key == "ready":
        return "reached"
    return "ended here" if value is None else seconds(value)


def _run_document(run: RunRecord) -> dict[str, Any]:
    return {
        "path": str(run.path),
        "engine": run.engine,
        "version": run.version,
        "outcome": run.outcome,
        "verdict": run.verdict,
        "reason": run.reason,
        "command": list(run.command),
    }
