"""Time as an argument: unix seconds that never jump, and sleeping. Tests give a clock of their own."""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now(self) -> float:
        """Unix seconds, never going back."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""


class SystemClock:
    """The machine's time: unix seconds at the start, advanced by the monotonic clock (set clocks are not seen)."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        return time.monotonic() + self._offset

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
