"""Where each rank of a server stands: its stacks, taken without harming it.

py-spy first (`--native`, then plain), which only reads the process (it is stopped for some milliseconds; a process that
is stopped already is read without stopping it). Where ptrace is forbidden: what /proc says of every thread. Never a
signal: SIGUSR1/2 kill an SGLang process, SIGABRT ends it.
"""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from eyas.serve.facts.evidence import ProcessFacts

_PY_SPY_S, _PY_SPY_STEP_S = 20.0, 0.3
_MAX_THREADS = 60
_NOISE = ("threading.py", "_bootstrap", "selectors.py", "asyncio/", "concurrent/futures", "tqdm/_monitor")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStack:
    """One process at one moment.

    Attributes:
        how: "py-spy --native", "py-spy" or "/proc".
        threads: thread name -> frames, innermost first: "function (file:line)"; with /proc "wchan=... state=...".
        raw: the tool's text, for the file.
    """

    label: str
    pid: int
    status: str
    how: str
    threads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    raw: str = ""

    @property
    def main(self) -> tuple[str, ...]:
        """The frames of the thread that matters: the main thread, else the one with the deepest stack."""
        for name, frames in self.threads.items():
            if name.startswith("MainThread"):
                return frames
        return max(self.threads.values(), key=len, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSample:
    """All ranks at one moment; `notes` says what could not be had and why."""

    at: float
    ranks: tuple[RankStack, ...]
    notes: tuple[str, ...] = ()


class StackTaker(Protocol):
    """Takes stacks."""

    def take(self, processes: Sequence[ProcessFacts], now: float) -> StackSample:
        """The stacks of these processes."""


class LiveStackTaker:
    """Takes stacks with py-spy if it is there and allowed, else from /proc."""

    def __init__(self, py_spy: str | None = None, interrupted: Callable[[], bool] = lambda: False) -> None:
        self._py_spy, self._interrupted = py_spy or find_py_spy(), interrupted

    def take(self, processes: Sequence[ProcessFacts], now: float) -> StackSample:
        """The stacks of all processes that run Python (compilers are left out), at most a few seconds each."""
        notes: list[str] = []
        ranks: list[RankStack] = []
        if self._py_spy is None:
            notes.append("py-spy is not installed (pip install 'eyas[stacks]'): only /proc was read")
        for process in processes:
            if process.is_compiler or process.status == "Z" or self._interrupted():
                continue
            stack, note = self._one(process)
            ranks.append(stack)
            if note and note not in notes:
                notes.append(note)
        return StackSample(at=now, ranks=tuple(ranks), notes=tuple(notes))

    def _one(self, process: ProcessFacts) -> tuple[RankStack, str]:
        note = ""
        if self._py_spy is not None:
            # A stopped process would keep a tracer waiting for ever: read it without stopping it.
            ways: list[list[str]] = [["--nonblocking"]] if process.status in ("T", "t") else [["--native"], []]
            for flags in ways:
                text, problem = _run_py_spy(self._py_spy, process.pid, flags, self._interrupted)
                if text:
                    how = " ".join(["py-spy", *flags])
                    threads = parse_py_spy(text)
                    return (
                        RankStack(
                            label=process.label,
                            pid=process.pid,
                            status=process.status,
                            how=how,
                            threads=threads,
                            raw=text,
                        ),
                        note,
                    )
                note = note or problem
        return proc_stack(process), note


def find_py_spy() -> str | None:
    """The py-spy program: beside this Python, or on PATH."""
    import sys

    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _run_py_spy(program: str, pid: int, flags: Iterable[str], interrupted: Callable[[], bool]) -> tuple[str, str]:
    """(dump, "") or ("", why there is none)."""
    command = [program, "dump", "--pid", str(pid), *flags]
    end = time.monotonic() + _PY_SPY_S
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            while True:
                try:
                    out, err = (part.decode(errors="replace") for part in running.communicate(timeout=_PY_SPY_STEP_S))
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() > end or interrupted():
                        running.kill()
                        running.communicate()
                        seconds = f"{_PY_SPY_S:.0f} s (a process in the kernel cannot be read)"
                        return "", f"py-spy gave no stack within {seconds}"
    except OSError as error:
        return "", f"py-spy could not be started: {error.strerror}"
    if running.returncode == 0 and "Thread" in out:
        return out, ""
    problem = (err or out).strip().splitlines()
    text = problem[0] if problem else f"exit code {running.returncode}"
    if "ermission" in err or "EPERM" in err:
        return "", (
            "ptrace is forbidden here (container without SYS_PTRACE, or kernel.yama.ptrace_scope): only /proc was "
            "read; run as root, or start the container with --cap-add SYS_PTRACE"
        )
    return "", f"py-spy: {text}"


def parse_py_spy(text: str) -> dict[str, tuple[str, ...]]:
    """py-spy's dump as thread -> frames, innermost first, as it prints them.

    A thread begins 'Thread 0x7F.. (active): "MainThread"' or 'Thread 123 (idle): "MainThread"'; frames are indented.
    """
    threads: dict[str, tuple[str, ...]] = {}
    name, frames = "", list[str]()
    for line in [*text.splitlines(), "Thread"]:
        if line.startswith("Thread"):
            if name:
                threads[name] = tuple(frames)
            title = line.partition('"')[2].partition('"')[0]
            state = line.partition("(")[2].partition(")")[0]
            name, frames = f"{title or line.partition(' (')[0]} ({state})", []
        elif name and line.startswith(" ") and line.strip():
            frames.append(line.strip())
    return threads


def proc_stack(process: ProcessFacts) -> RankStack:
    """What /proc says of each thread: state, wchan, syscall, and the kernel stack if we may read it."""
    threads: dict[str, tuple[str, ...]] = {}
    tasks = Path(f"/proc/{process.pid}/task")
    try:
        ids = sorted(int(entry.name) for entry in tasks.iterdir())[:_MAX_THREADS]
    except OSError:
        ids = []
    for task in ids:
        folder = tasks / str(task)
        name = "MainThread" if task == process.pid else f"{_read(folder / 'comm')} {task}"
        state = _read(folder / "stat").rpartition(")")[2].split()[:1]
        frames = [
            f"{word}={value}" for word in ("wchan", "syscall") if (value := _read(folder / word)) not in ("", "0")
        ]
        frames = [f"state={state[0] if state else '?'}", *frames]
        frames += [f"kernel: {line.split()[-1]}" for line in _read(folder / "stack").splitlines()[:8]]
        threads[name] = tuple(frames)
    raw = "\n".join(f"{name}: {'; '.join(frames)}" for name, frames in threads.items())
    return RankStack(label=process.label, pid=process.pid, status=process.status, how="/proc", threads=threads, raw=raw)


def as_text(sample: StackSample) -> str:
    """A sample as the text of stacks-N.txt."""
    parts = [f"# sample at {sample.at:.1f}", *(f"# {note}" for note in sample.notes)]
    parts += [
        f"\n===== {rank.label} pid {rank.pid} state {rank.status} ({rank.how}) =====\n{rank.raw}"
        for rank in sample.ranks
    ]
    return "\n".join(parts) + "\n"


def interesting(frames: Sequence[str]) -> tuple[str, ...]:
    """Frames without the ones that every thread has."""
    return tuple(frame for frame in frames if not any(noise in frame for noise in _NOISE)) or tuple(frames)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace", encoding="utf-8").strip()
    except OSError:
        return ""
