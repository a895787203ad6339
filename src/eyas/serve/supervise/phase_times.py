"""How long the phases of a start take: what earlier starts of the same kind took, and what that leaves of this one.

Remembered per (engine, version, models, hardware): one small JSON file per key (schema eyas.phase-durations/1) with the
last ten starts. Losing it loses only ETAs.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from eyas.errors import EyasError
from eyas.records import fingerprint
from eyas.records.atomic import write_text
from eyas.serve.facts.run_folder import read_document
from eyas.serve.log.phases import PhaseRun

_KEEP = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class StartKey:
    """What makes two starts comparable. Empty strings where something is not known."""

    engine: str
    version: str = ""
    target: str = ""
    draft: str = ""
    hardware: str = ""
    flags: str = ""


class PhaseMemory:
    """Remembers durations below a folder (for example ~/.cache/eyas/phases)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def typical(self, key: StartKey) -> dict[str, float]:
        """Phase key -> median seconds of the remembered starts, in the order of the last one; {} if there are none."""
        starts = self._read(key)
        if not starts:
            return {}
        names = list(starts[-1]) + [name for start in starts[:-1] for name in start if name not in starts[-1]]
        return {
            name: statistics.median(start[name] for start in starts if name in start) for name in dict.fromkeys(names)
        }

    def remember(self, key: StartKey, durations: Mapping[str, float]) -> None:
        """Add one start that got ready. A full disk loses the memory, never the server."""
        starts = [*self._read(key), dict(durations)][-_KEEP:]
        document = {
            "schema": "eyas.phase-durations/1",
            "key": {name: getattr(key, name) for name in key.__dataclass_fields__},
            "starts": starts,
        }
        try:
            write_text(self._path(key), json.dumps(document, indent=1) + "\n")
        except EyasError:
            return

    def _path(self, key: StartKey) -> Path:
        values = {name: getattr(key, name) for name in key.__dataclass_fields__}
        return self._folder / f"{key.engine}-{fingerprint.of_json(values)}.json"

    def _read(self, key: StartKey) -> list[dict[str, float]]:
        try:
            starts = read_document(self._path(key))["starts"]
            return [{str(k): float(v) for k, v in start.items()} for start in starts]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return []


@dataclass(slots=True)
class PhaseTimes:
    """One start against those that are remembered under `key`; without a memory nothing is known and nothing kept."""

    memory: PhaseMemory | None
    key: StartKey | None
    typical: dict[str, float] = field(init=False, default_factory=dict)
    _is_kept: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        if self.memory is not None and self.key is not None:
            self.typical = self.memory.typical(self.key)

    def phase_eta_s(self, run: PhaseRun, at: float) -> float | None:
        """Seconds until the phase ends, by its progress bar, else by earlier starts; None = not known."""
        if run.ended_at is not None:
            return None
        if run.bar_eta is not None:
            return max(run.bar_eta - (at - run.bar_at), 0.0)
        return max(self.typical[run.key] - (at - run.began_at), 0.0) if run.key in self.typical else None

    def ready_eta_s(self, run: PhaseRun, at: float) -> float | None:
        """Seconds that the remembered starts took from this phase on; None = not known."""
        names = list(self.typical)
        if run.key not in names:
            return None
        rest = sum(self.typical[name] for name in names[names.index(run.key) + 1 :])
        return rest + max(self.typical[run.key] - (at - run.began_at), 0.0)

    def keep(self, runs: Sequence[PhaseRun]) -> None:
        """It is ready: remember this start, once."""
        if self.memory is not None and self.key is not None and not self._is_kept:
            self.memory.remember(self.key, durations(runs))
        self._is_kept = True


def durations(runs: Sequence[PhaseRun]) -> dict[str, float]:
    """Phase key -> seconds until the next phase began, for the phases before "ready"."""
    return {
        run.key: after.began_at - run.began_at for run, after in pairwise(runs) if run.id not in ("ready", "draining")
    }
