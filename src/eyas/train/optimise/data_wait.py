"""How long a device had nothing to do because rows were being fetched, divided or packed."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class DataWait:
    """Sums it up; never waits for the device.

    Args:
        is_idle: whether the device has done all that it was given; asked behind each piece of work on data. One that is
            still busy then has not waited for it. One that is idle has waited for all of it at most, which is counted.
        clock: seconds.
    """

    def __init__(self, is_idle: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._is_idle, self._clock = is_idle, clock
        self._seconds = 0.0

    @classmethod
    def of(cls, device: torch.device) -> "DataWait":
        """For the work given to `device` by this thread; a CPU works on nothing else meanwhile."""
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
        """Seconds since it was last taken."""
        taken, self._seconds = self._seconds, 0.0
        return taken
