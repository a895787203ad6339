"""The marker tables: what each engine's lines mean, by version. Loads `markers.toml`; judges nothing."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from eyas.contract.engines.version import matches


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
    return tomllib.loads(resources.files("eyas.serve").joinpath("markers.toml").read_text(encoding="utf-8"))
