"""The small parent of an engine: no orphan, ever. Run as a script of its own; uses only the standard library.

    python -I guard.py STATUS_FD LIFELINE_FD DEADLINE_S COMMAND...

- Two processes: the guard, which starts the engine, and above it its keeper, which only waits. If the guard is
  killed, the keeper ends what it leaves; if the keeper is killed, the guard does not need it. Each has a session of its
  own, so that no signal to a process group reaches both.
- Both are child subreapers: whatever the engine's processes leave becomes the guard's child, also after setsid.
- It notices the death of its parent (end of file on LIFELINE_FD), even by SIGKILL, and then ends the engine:
  SIGTERM, DEADLINE_S, SIGKILL.
- When the engine's main process ends, it ends what is left of the tree, until it has no child any more (ECHILD): a
  process that forks and ends between two looks at /proc leaves its child to the subreaper.
- The engine's main process gets SIGKILL if the guard itself is killed (PR_SET_PDEATHSIG).
Status lines: "guard N", "pid N", "failed ERRNO", "exit CODE" (as a shell says it: 128 + signal), "left N" (processes
that outlived their main process and were ended), "gone".
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.1
_LEFTOVER_S = 5.0
_LEFT_BY_GUARD_S = 1.0  # their main process was killed: there is nothing to drain


def main(arguments: list[str]) -> int:
    """Guard one command; its exit code."""
    status, lifeline, deadline = int(arguments[0]), int(arguments[1]), float(arguments[2])
    command = arguments[3:]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    guard = os.fork()
    if guard:
        os.close(lifeline)
        return _keep(guard, status)
    os.setsid()
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # a fork does not inherit it
    _say(status, f"guard {os.getpid()}")
    child = _start(command, libc, status, lifeline)
    if child is None:
        return 127
    code = _watch(child, lifeline, deadline)
    _end_and_say(status, f"exit {code}", _LEFTOVER_S)
    return code


def _keep(guard: int, status: int) -> int:
    """Wait for the guard; its exit code. If it was killed, its children are ours now: end them."""
    while True:
        pid, state = os.waitpid(-1, 0)
        if pid == guard:
            break
    if not os.WIFSIGNALED(state):
        return os.waitstatus_to_exitcode(state)
    _end_and_say(status, "exit 137", _LEFT_BY_GUARD_S)  # PR_SET_PDEATHSIG ended the engine's main process
    return 137


def _start(command: list[str], libc: ctypes.CDLL, status: int, lifeline: int) -> int | None:
    """Fork and exec; the child's pid, or None after saying "failed ERRNO"."""
    told_read, told_write = os.pipe()  # closed by a good exec
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            os.close(status)
            os.close(lifeline)
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != guard:
                os._exit(127)
            os.execvpe(command[0], command, os.environ)
        except OSError as error:
            os.write(told_write, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(told_write)
    problem = os.read(told_read, 16).decode()
    os.close(told_read)
    if problem:
        os.waitpid(child, 0)
        _say(status, f"failed {problem}")
        return None
    _say(status, f"pid {child}")
    return child


def _watch(child: int, lifeline: int, deadline: float) -> int:
    """Wait for the main process; end it when the process that started us is gone."""
    end: float | None = None
    while True:
        code, _ = _reap(child)
        if code is not None:
            return code
        if end is None:
            ready, _, _ = select.select([lifeline], [], [], _POLL_S)
            if ready and not os.read(lifeline, 1):
                _send(child, signal.SIGTERM)
                # SIGTERM waits at a stopped process until it is resumed
                _send(child, signal.SIGCONT)
                end = time.monotonic() + deadline
        else:
            time.sleep(_POLL_S)
            if time.monotonic() > end:
                for pid in (child, *_descendants()):
                    _send(pid, signal.SIGKILL)


def _reap(main_child: int) -> tuple[int | None, bool]:
    """Collect ended children, adopted ones too: the main one's exit code if it is among them; whether any is left."""
    code = None
    while True:
        try:
            pid, state = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code, False
        if pid == 0:
            return code, True
        if pid == main_child:
            value = os.waitstatus_to_exitcode(state)
            code = 128 - value if value < 0 else value


def _descendants() -> list[int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with (
                contextlib.suppress(OSError, ValueError, IndexError),
                open(f"/proc/{name}/stat", encoding="utf-8") as file,
            ):
                fields = file.read().rpartition(")")[2].split()
                if fields[0] != "Z":
                    parents[int(name)] = int(fields[1])
    mine = {os.getpid()}
    while found := {pid for pid, parent in parents.items() if parent in mine and pid not in mine}:
        mine |= found
    return sorted(mine - {os.getpid()})


def _end_all(grace_s: float) -> int:
    """SIGTERM, a grace, SIGKILL, until nothing is left; how many processes that were."""
    asked: set[int] = set()
    end = time.monotonic() + grace_s
    while _reap(-1)[1]:
        late = time.monotonic() > end
        for pid in _descendants():
            if late:
                _send(pid, signal.SIGKILL)
            elif pid not in asked:
                _send(pid, signal.SIGTERM)
                _send(pid, signal.SIGCONT)
            asked.add(pid)
        time.sleep(0.0 if late else 0.02)  # a chain of short-lived processes is only caught by looking fast
    return len(asked)


def _end_and_say(status: int, ending: str, grace_s: float) -> None:
    _say(status, ending)
    left = _end_all(grace_s)
    if left:
        _say(status, f"left {left}")
    _say(status, "gone")


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _say(status: int, text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(status, f"{text}\n".encode())


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main(sys.argv[1:]))
