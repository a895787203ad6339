"""A failure in eyas must end neither the watch nor the server: it is reported once, and the watch continues.

Every part of looking, judging, showing and recording is called through a `Containment`. Signals and exits of eyas
itself (`BaseException`) pass.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

Value = TypeVar("Value")
_MAX_TOLD = 100
_MAX_CHARACTERS = 300


@dataclass(slots=True)
class Containment:
    """Contains failures.

    Args:
        tell: is given each kind of failure once, as a sentence; its own failures are contained as well.
    """

    tell: Callable[[str], object]
    _told: set[tuple[str, str]] = field(default_factory=set)

    def run(self, what: str, work: Callable[[], Value], default: Value) -> Value:
        """What `work` gives; `default` if it fails. `what` continues the sentence "eyas failed while ..."."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - that is what it is for
            kind = (what, type(error).__name__)
            if kind not in self._told and len(self._told) < _MAX_TOLD:
                self._told.add(kind)
                with suppress(Exception):
                    self.tell(f"eyas failed while {what} ({told(error)}); it continues without")
            return default


def told(error: Exception) -> str:
    """An exception in one short line: what and why of an `EyasError`, else type and text."""
    text = " ".join(str(getattr(error, "what", error)).split())
    why = " ".join(str(getattr(error, "why", "")).split())
    head = text if why else f"{type(error).__name__}: {text}"
    return f"{head}{': ' if why else ''}{why}"[:_MAX_CHARACTERS]
