"""How long a device was idle while rows were fetched, divided or packed."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class DataWait:
    """Sums up the idle time; never waits for the device.

    Args:
        is_idle: whether the device has finished its work; asked after each piece of work on data. A device that is
            still busy has not waited. One that is idle has waited at most for all of it, and that is counted.
        clock: seconds.
    """

    def __init__(self, is_idle: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._is_idle, self._clock = is_idle, clock
        self._seconds = 0.0

    @classmethod
    def of(cls, device: torch.device) -> "DataWait":
        """For the work given to `device` by this thread; a CPU is always idle meanwhile."""
        if device.type != "cuda":
            return cls(lambda: True)
        return cls(lambda: torch.cuda.current_stream(device).query())

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Around work on data."""
        begin = self._clock()
        yield
        if self._is_idle():
            self._seconds += self._clock() - begin

    def take(self) -> float:
        """Seconds since the last call."""
        taken, self._seconds = self._seconds, 0.0
        return taken
