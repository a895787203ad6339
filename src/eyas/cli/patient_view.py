"""A view whose reader may stop reading (Ctrl-S, a full pipe): what is shown waits for a moment only.

A write that blocks for ever would end the looking, and with it the answer to Ctrl-C.
"""

import signal
import time
from collections.abc import Callable
from types import FrameType

from eyas.serve.facts.state import Event, PhaseRow, Snapshot
from eyas.serve.supervise.views import View

_LIMIT_S = 1.0
_AGAIN_S = 10.0


class OutputNotRead(Exception):
    """What is shown is not read."""


class PatientView:
    """Shows through `view`; what takes longer than a second is broken off, and the next seconds are not shown.

    Use in the main thread: the alarm of the process is used.
    """

    def __init__(self, view: View, *, limit_s: float = _LIMIT_S, again_s: float = _AGAIN_S) -> None:
        self._view, self._limit_s, self._again_s = view, limit_s, again_s
        self._stuck_at: float | None = None

    def show(self, snapshot: Snapshot, rows: tuple[PhaseRow, ...]) -> None:
        """The newest snapshot, if it is read."""
        self.within_limit(lambda: self._view.show(snapshot, rows))

    def event(self, event: Event) -> None:
        """What happened, if it is read."""
        self.within_limit(lambda: self._view.event(event))

    def close(self) -> None:
        """Give the terminal back, if it takes it."""
        try:
            self.within_limit(self._view.close)
        except OutputNotRead:
            return

    def within_limit(self, write: Callable[[], None]) -> None:
        """Write what may block.

        Raises:
            OutputNotRead: it took too long, and was broken off.
        """
        if self._stuck_at is not None and time.monotonic() - self._stuck_at < self._again_s:
            return
        self._stuck_at = None
        before = signal.signal(signal.SIGALRM, self._break_off)
        signal.setitimer(signal.ITIMER_REAL, self._limit_s)
        try:
            write()
        except OutputNotRead:
            self._stuck_at = time.monotonic()
            raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _break_off(self, _number: int, _frame: FrameType | None) -> None:
        raise OutputNotRead("its reader has stopped: a full pipe, or a terminal that was stopped with Ctrl-S")
