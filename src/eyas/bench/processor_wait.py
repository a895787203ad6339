"""How long this process was ready to run and had no processor: what another program does to a measurement."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from eyas.bench.compare import BaselineHandicapped

BUSY_SHARE = 0.02  # an idle machine keeps a thread waiting for a thousandth of its time
_TASKS = Path("/proc/self/task")


@dataclass(slots=True)
class ProcessorWait:
    """Counts from where it is made.

    Attributes:
        tasks: a folder with one folder per thread, each with `schedstat`: "ran waited slices", nanoseconds.
        clock: seconds.
    """

    tasks: Path = _TASKS
    clock: Callable[[], float] = time.perf_counter
    _before: dict[str, int] = field(init=False)
    _start: float = field(init=False)

    def __post_init__(self) -> None:
        self._before, self._start = _waited_ns(self.tasks), self.clock()

    def share(self) -> float | None:
        """Of the time since the start, how much the thread that waited most did wait; None where the kernel does not
        say."""
        waited = {task: ns - self._before.get(task, 0) for task, ns in _waited_ns(self.tasks).items()}
        seconds = self.clock() - self._start
        return max(waited.values()) / 1e9 / seconds if waited and seconds > 0 else None


def _waited_ns(tasks: Path) -> dict[str, int]:
    found = {}
    try:
        for task in tasks.iterdir():
            found[task.name] = int((task / "schedstat").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):  # not Linux, or a kernel without these figures
        return {}
    return found


def is_busy(wait_share: object) -> bool:
    """Whether other programs kept a measurement waiting."""
    return isinstance(wait_share, float) and wait_share >= BUSY_SHARE


def refused(refusal: BaselineHandicapped, wait_share: float | None) -> str:
    """An impossible speedup in a verdict, with its cause where that is a busy machine."""
    text = f"NOT VALID: {refusal.what} ({refusal.where})"
    if not is_busy(wait_share):
        return text
    return (
        f"{text}. Other programs slowed the plain arm down: this process waited for a processor for {wait_share:.0%} of"
        " the time. Run it again on an idle machine"
    )
