"""What happened when: events as they come, phases with their durations. The page and `--compare` are made from it."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from eyas.serve.facts.state import Event, Snapshot, StateName
from eyas.serve.log.phases import PhaseRun

SCHEMA = "eyas.timeline/1"
_MAX_EVENTS = 5000


class Timeline:
    """Gathers events; `as_document` gives the whole with the phases."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.num_dropped = 0

    def add(self, event: Event) -> None:
        """Keep an event (of "progress" events beyond the limit only the number is kept)."""
        if len(self.events) >= _MAX_EVENTS and event.kind == "progress":
            self.num_dropped += 1
            return
        self.events.append(event)

    def as_document(self, runs: Sequence[PhaseRun], last: Snapshot | None) -> dict[str, Any]:
        """The object of schema eyas.timeline/1.

        phases: key, role, detail, began_at (unix s), duration_s (None while it runs), share of the whole start;
        states: when each state was entered; events: all of them; outcome: the last state and its reason.
        """
        start = runs[0].began_at if runs else (self.events[0].at if self.events else 0.0)
        ready = next((run.began_at for run in runs if run.id == "ready"), None)
        return {
            "schema": SCHEMA,
            "engine": last.engine if last else "unknown",
            "version": last.version if last else None,
            "began_at": start,
            "ready_after_s": None if ready is None else ready - start,
            "phases": [_phase(run, runs[i + 1].began_at if i + 1 < len(runs) else None) for i, run in enumerate(runs)],
            "states": [
                {"state": str(event.state), "at": event.at, "elapsed_s": event.elapsed_s, "reason": event.text}
                for event in self.events
                if event.kind == "state"
            ],
            "events": [event.as_document() for event in self.events],
            "num_dropped_progress_events": self.num_dropped,
            "outcome": str(last.state if last else StateName.UNREACHABLE),
            "reason": last.reason if last else "",
            "cause": last.as_document()["cause"] if last else None,
        }


def durations(runs: Sequence[PhaseRun]) -> dict[str, float]:
    """Phase key -> seconds until the next phase began, for the phases before "ready"."""
    return {
        run.key: after.began_at - run.began_at for run, after in pairwise(runs) if run.id not in ("ready", "draining")
    }


def _phase(run: PhaseRun, next_began: float | None) -> dict[str, Any]:
    ended = run.ended_at if next_began is None else next_began
    return {
        "key": run.key,
        "id": run.id,
        "role": run.role,
        "detail": run.detail,
        "began_at": run.began_at,
        "duration_s": None if ended is None else ended - run.began_at,
        "progress": None
        if run.progress is None
        else {"done": run.progress.done, "total": run.progress.total, "unit": run.progress.unit},
    }
