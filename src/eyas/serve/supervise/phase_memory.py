"""How long each phase took before, per (engine, version, models, hardware): where an ETA comes from.

One small JSON file per key (schema eyas.phase-durations/1), the last ten starts in each. Losing it loses only ETAs.
"""

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eyas.errors import EyasError
from eyas.records import fingerprint
from eyas.records.atomic import write_text

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
            document = json.loads(self._path(key).read_text(encoding="utf-8"))
            return [{str(k): float(v) for k, v in start.items()} for start in document["starts"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return []
