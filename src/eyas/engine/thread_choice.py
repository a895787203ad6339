"""How many threads our CPU kernels should use: measured, because busy cores make threads wait for each other."""

from collections.abc import Callable

_WORTH = 0.95  # more threads must be this much faster: they suffer more from whatever else runs
_NUM_TRIES = 3


def candidates(most: int) -> list[int]:
    """1, 2, 4 … and `most`."""
    powers = [1 << i for i in range(most.bit_length()) if 1 << i < most]
    return [*powers, most]


def choose_threads(most: int, run: Callable[[int], None], clock: Callable[[], float]) -> int:
    """The number of threads, 1 … `most`, at which `run(threads)` is fastest.

    Args:
        most: threads that torch would use.
        run: one typical pass with so many threads.
        clock: seconds.
    """
    best, best_s = 1, float("inf")
    for threads in candidates(most):
        run(threads)  # wakes the threads up
        seconds = min(_timed(run, threads, clock) for _ in range(_NUM_TRIES))
        if seconds < best_s * (_WORTH if threads > 1 else 1.0):
            best, best_s = threads, seconds
    return best


def _timed(run: Callable[[int], None], threads: int, clock: Callable[[], float]) -> float:
    started = clock()
    run(threads)
    return clock() - started
