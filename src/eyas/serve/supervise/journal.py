"""What a watch writes down: events to listeners, to the timeline and to the run folder; warnings once each.

A full disk loses our notes, never the server: it is said once and the watch goes on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eyas.errors import EyasError
from eyas.serve.facts.run_folder import RunFolder
from eyas.serve.facts.state import Event, EventKind, Snapshot, StateName
from eyas.serve.supervise.timeline import Timeline


@dataclass(slots=True)
class Journal:
    """One watch's notes. `state` is the last state that was told; `began_at` unix seconds."""

    folder: RunFolder | None
    began_at: float
    timeline: Timeline = field(default_factory=Timeline)
    listeners: list[Callable[[Event], None]] = field(default_factory=list)
    warnings: dict[str, str] = field(default_factory=dict)
    state: StateName = StateName.STARTING

    def tell(self, kind: EventKind, text: str, data: Mapping[str, Any], *, at: float) -> None:
        """Something happened at unix time `at`."""
        event = Event(at=at, elapsed_s=at - self.began_at, kind=kind, state=self.state, text=text, data=dict(data))
        self.timeline.add(event)
        if self.folder is not None:
            try:
                self.folder.append_event(event.as_document())
            except EyasError as error:
                self._lost(error)
        for listener in self.listeners:
            listener(event)

    def warn(self, text: str, *, at: float, key: str = "") -> None:
        """A warning, told once and standing from then on; with `key` its newest wording stands, still told once."""
        is_new = (key or text) not in self.warnings
        self.warnings[key or text] = text
        if is_new:
            self.tell("warning", text, {}, at=at)

    def withdraw(self, key: str) -> None:
        """A warning that no longer holds; told again if it comes back."""
        self.warnings.pop(key, None)

    def write_snapshot(self, snapshot: Snapshot, timeline: Mapping[str, Any]) -> None:
        """last.json and timeline.json in the run folder."""
        if self.folder is None:
            return
        try:
            self.folder.write_document("timeline.json", timeline)
            self.folder.write_document("last.json", snapshot.as_document())
        except EyasError as error:
            self._lost(error)

    def _lost(self, error: EyasError) -> None:
        text = f"the run folder cannot be written: {error.why}"
        self.warnings[text] = text
