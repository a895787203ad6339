"""Ending a server well: SIGTERM, let it drain, a deadline, then SIGKILL; children gone, GPU memory back."""

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from eyas.serve.facts.clock import Clock, SystemClock
from eyas.serve.look.engine_process import DRAIN_DEADLINE_S, EngineProcess
from eyas.serve.look.gpu_counters import GpuCounters
from eyas.serve.look.process_tree import tree_of

_POLL_S = 0.2
_GONE_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOutcome:
    """How the end went.

    Attributes:
        exit_code: of the main process, as a shell says it. waited_s: from SIGTERM to its end.
        num_killed: processes that had to be killed. num_leftovers: children that outlived the main process.
        is_gone: nothing of the tree is left. gpu_freed_bytes: GPU memory that came back; None where not readable.
    """

    exit_code: int | None
    waited_s: float
    num_killed: int
    num_leftovers: int
    is_gone: bool
    gpu_freed_bytes: int | None = None

    def __str__(self) -> str:
        text = f"ended after {self.waited_s:.1f} s with exit code {self.exit_code}"
        if self.num_killed:
            text += f"; {self.num_killed} processes were killed"
        if self.num_leftovers:
            text += f"; {self.num_leftovers} had outlived it and were ended"
        if self.gpu_freed_bytes is not None:
            text += f"; {self.gpu_freed_bytes / 1e9:.1f} GB of GPU memory came back"
        return text + ("" if self.is_gone else "; SOME PROCESSES ARE STILL THERE")

    def as_document(self) -> dict[str, Any]:
        """The outcome as JSON fields."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def stop(
    process: EngineProcess,
    *,
    deadline_s: float = DRAIN_DEADLINE_S,
    hurry: Callable[[], bool] = lambda: False,
    on_wait: Callable[[float], None] | None = None,
    clock: Clock | None = None,
    gpus: GpuCounters | None = None,
) -> StopOutcome:
    """End a server that we started and wait until nothing of it is left.

    Args:
        deadline_s: how long it may drain. hurry: True = kill now (a second Ctrl-C).
        on_wait: called with the seconds waited so far, some times a second.
    """
    clock = clock or SystemClock()
    gpus = gpus or GpuCounters()
    used_before = _used_bytes(gpus, process)
    start = clock.now()
    process.ask_to_end()
    killed = 0
    while process.poll() is None:
        waited = clock.now() - start
        if on_wait is not None:
            on_wait(waited)
        if hurry() or waited >= deadline_s:
            killed += process.kill_all()
            break
        clock.sleep(_POLL_S)
    gone = process.wait_gone(_GONE_S)
    waited = clock.now() - start
    used_after = _used_bytes(gpus, process) if used_before is not None else None
    return StopOutcome(
        exit_code=process.poll(),
        waited_s=waited,
        num_killed=killed,
        num_leftovers=process.num_leftovers,
        is_gone=gone,
        gpu_freed_bytes=None if used_before is None or used_after is None else max(used_before - used_after, 0),
    )


@dataclass(slots=True)
class Interrupts:
    """Counts Ctrl-C, SIGTERM and SIGHUP instead of dying of them: the first asks the server to end, the second kills.

    Use as a context manager in the main thread; the handlers that were there before come back. With `grace_s`
    KeyboardInterrupt is raised where a signal was not heeded for so long: for a watch in the middle of a long look.
    """

    count: int = 0
    grace_s: float | None = None
    _before: dict[int, Any] = field(default_factory=dict)

    def __enter__(self) -> "Interrupts":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP, and so do we then
                self._before[number] = signal.signal(number, self._take)
        if self.grace_s is not None:
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._break_off)
        return self

    def __exit__(self, *_: object) -> None:
        if self.grace_s is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def asked(self) -> bool:
        """At least one interrupt came."""
        return self.count >= 1

    def hurry(self) -> bool:
        """A second one came."""
        return self.count >= 2

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self.grace_s is not None:
            signal.setitimer(signal.ITIMER_REAL, self.grace_s)

    def _break_off(self, _number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt


def _used_bytes(gpus: GpuCounters, process: EngineProcess) -> int | None:
    try:
        facts = gpus.read([p.pid for p in tree_of(process.guard_pid)])
    except Exception:  # noqa: BLE001 - no descriptor is left: the engine is ended all the same
        return None
    return None if facts is None else sum(gpu.used_bytes for gpu in facts if gpu.is_mine)
