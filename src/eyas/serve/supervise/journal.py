"""What a watch writes down: events to listeners, to the timeline and to the run folder; warnings once each.

The timeline is what the report page and `--compare` are made from. A full disk loses our notes, never the server: it
is said once and the watch continues.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from eyas.serve.facts.containment import Containment
from eyas.serve.facts.run_folder import RunFolder
from eyas.serve.facts.state import Event, EventKind, Snapshot, StateName
from eyas.serve.log.phases import PhaseRun

SCHEMA = "eyas.timeline/1"
_MAX_EVENTS = 5000
_MAX_WARNINGS = 100
_MAX_CHARACTERS = 2000  # of one text: a server or a log may hand us anything
_OF_LINES = ("note", "proof", "stop")  # the others hold what others said: one line, or it could pass for several
_WRITING = "writing into the run folder"


class Timeline:
    """Gathers events; `as_document` gives the whole with the phases."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.num_dropped = 0

    def add(self, event: Event) -> bool:
        """Keep an event; False if there are too many (changes of state and their like are kept for longer)."""
        limit = _MAX_EVENTS if event.kind in ("progress", "phase", "note") else 2 * _MAX_EVENTS
        if len(self.events) >= limit:
            self.num_dropped += 1
            return False
        self.events.append(event)
        return True

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


@dataclass(slots=True)
class Journal:
    """One watch's notes. `state` is the last state that was told; `began_at` unix seconds.

    Writing and showing are contained: what fails there is a warning, and the next note is tried again.
    """

    folder: RunFolder | None
    began_at: float
    timeline: Timeline = field(default_factory=Timeline)
    listeners: list[Callable[[Event], None]] = field(default_factory=list)
    warnings: dict[str, str] = field(default_factory=dict)
    state: StateName = StateName.STARTING
    _contained: Containment = field(init=False)

    def __post_init__(self) -> None:
        # Told by the next snapshot only: an event about a lost view or a full disk would fail as well.
        self._contained = Containment(lambda text: self.warnings.setdefault(text, text))

    def tell(self, kind: EventKind, text: str, data: Mapping[str, Any], *, at: float) -> None:
        """Something happened at unix time `at`."""
        text = text[:_MAX_CHARACTERS] if kind in _OF_LINES else " ".join(text[:_MAX_CHARACTERS].splitlines())
        event = Event(at=at, elapsed_s=at - self.began_at, kind=kind, state=self.state, text=text, data=dict(data))
        if not self.timeline.add(event):
            return
        folder = self.folder
        if folder is not None:
            self._contained.run(_WRITING, lambda: folder.append_event(event.as_document()), None)
        for listener in tuple(self.listeners):
            self._contained.run("showing what happened", partial(listener, event), None)

    def warn(self, text: str, *, at: float, key: str = "") -> None:
        """A warning, told once and standing from then on; with `key` its newest wording stands, still told once."""
        key = key or text
        is_new = key not in self.warnings
        if is_new and len(self.warnings) >= _MAX_WARNINGS:
            return
        self.warnings[key] = text[:_MAX_CHARACTERS]
        if is_new:
            self.tell("warning", text, {}, at=at)

    def withdraw(self, key: str) -> None:
        """A warning that no longer holds; told again if it comes back."""
        self.warnings.pop(key, None)

    def write_snapshot(self, snapshot: Snapshot, timeline: Mapping[str, Any]) -> None:
        """last.json and timeline.json in the run folder."""
        self.write("timeline.json", lambda: timeline)
        self.write("last.json", snapshot.as_document)

    def write(self, name: str, document: Callable[[], Mapping[str, Any]]) -> None:
        """A JSON object into the run folder, if there is one."""
        folder = self.folder
        if folder is not None:
            self._contained.run(_WRITING, lambda: folder.write_document(name, document()), None)
