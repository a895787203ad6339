"""A server that we start: its own session, guarded against orphans, its output straight into the run folder's log.

The log is a file, not a pipe: an engine never waits for us to read, and does not outlive us (see `guard`).
"""

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from eyas.errors import ExitCode, EyasError
from eyas.records.atomic import write_failed
from eyas.serve.facts.evidence import ExitFacts
from eyas.serve.facts.run_folder import RunFolder
from eyas.serve.look.process_tree import is_alive, started_at, tree_of

_START_S = 20.0
_ORPHAN_ROUNDS, _ORPHAN_PAUSE_S = 40, 0.05
DRAIN_DEADLINE_S = 90.0  # SGLang's own crash dump waits 60 s


class EngineNotStarted(EyasError):
    """The engine's command could not be executed at all."""

    code = "engine-not-started"
    exit_code = ExitCode.ENVIRONMENT


@dataclass(slots=True)
class EngineProcess:
    """A running (or ended) engine.

    Attributes:
        pid: the engine's main process. guard_pid: the guard above it, which leads their session. keeper: above that.
        log_path: stdout and stderr.
        exit_code: as a shell says it (137 = SIGKILL), None while it runs.
        num_leftovers: processes that outlived the main one and were ended by the guard.
        is_gone: nothing of the tree is left.
        known: every process of the tree that was seen, with the time when it began (numbers come back).
    """

    pid: int
    guard_pid: int
    keeper: "subprocess.Popen[bytes]"
    log_path: Path
    status_fd: int
    lifeline_fd: int
    exit_code: int | None = None
    num_leftovers: int = 0
    is_gone: bool = False
    was_asked: bool = False
    oom_kills_before: int | None = None
    known: dict[int, float] = field(default_factory=dict)
    _rest: str = ""

    def poll(self) -> int | None:
        """The exit code if the main process has ended."""
        self._read_status(0.0)
        return self.exit_code

    def exit_facts(self) -> ExitFacts | None:
        """How it ended, with what the kernel says of its memory killer; None while it runs."""
        code = self.poll()
        if code is None:
            return None
        kills, words = None, ""
        if code == 137:
            now = count_oom_kills()
            kills = None if now is None or self.oom_kills_before is None else now - self.oom_kills_before
            words = kernel_words({*self.known, self.pid})
        return ExitFacts(code=code, num_oom_kills=kills, oom_text=words, asked=self.was_asked)

    def ask_to_end(self) -> None:
        """SIGTERM to the main process (never to a scheduler or a worker)."""
        self.was_asked = True
        self._signal_main(signal.SIGTERM)
        # SIGTERM waits at a stopped process until it is resumed
        self._signal_main(signal.SIGCONT)

    def kill_all(self) -> int:
        """SIGKILL to the whole tree below the guard; how many processes that were."""
        self.was_asked = True
        count = 0
        for pid in self._pids_below():
            try:
                os.kill(pid, signal.SIGKILL)
                count += 1
            except ProcessLookupError:
                continue
        return count

    def wait_gone(self, timeout_s: float) -> bool:
        """Wait until nothing of the tree is left; False if something still is after `timeout_s`."""
        end = time.monotonic() + timeout_s
        while not self.is_gone and (left := end - time.monotonic()) > 0:
            self._read_status(min(left, 0.2))
        if self.is_gone:
            self.keeper.wait(timeout=5)
        return self.is_gone

    def living(self) -> tuple[int, ...]:
        """Processes of the tree that are still there, the guard left out."""
        return tuple(p.pid for p in tree_of(self.guard_pid) if p.pid != self.guard_pid and p.status != "Z")

    def close(self) -> None:
        """Let go of it: the guard takes this as our death and ends the engine if it still runs."""
        for descriptor in (self.status_fd, self.lifeline_fd):
            try:
                os.close(descriptor)
            except OSError:
                continue
        self.status_fd = self.lifeline_fd = -1

    def _pids_below(self) -> tuple[int, ...]:
        try:
            return self.living()
        except OSError:  # no descriptor is left to read /proc with; the guard ends what the main process leaves
            return (self.pid,) if self.poll() is None else ()

    def _signal_main(self, number: int) -> None:
        if self.poll() is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    def _read_status(self, wait_s: float) -> None:
        while self.status_fd >= 0 and not self.is_gone and _is_readable(self.status_fd, wait_s):
            data = os.read(self.status_fd, 4096)
            if not data:
                # Guard and keeper were killed: PR_SET_PDEATHSIG has ended the main process, and the others are orphans.
                self.exit_code = 137 if self.exit_code is None else self.exit_code
                self.num_leftovers += end_orphans(self.known, self.guard_pid)
                self.is_gone = True
                return
            *lines, self._rest = (self._rest + data.decode()).split("\n")
            for line in lines:
                self._take(line)
            wait_s = 0.0

    def _take(self, line: str) -> None:
        word, _, value = line.partition(" ")
        if word == "exit" and self.exit_code is None:  # the guard's word counts more than that of its keeper
            self.exit_code = int(value)
        elif word == "left":
            self.num_leftovers = int(value)
        elif word == "gone":
            self.is_gone = True


def start_process(
    command: Sequence[str],
    env: Mapping[str, str],
    run_folder: RunFolder,
    *,
    cwd: Path | None = None,
    drain_deadline_s: float = DRAIN_DEADLINE_S,
    inherited: tuple[int, ...] = (),
) -> EngineProcess:
    """Start an engine under a guard, output into the run folder's engine.log.

    Args:
        command, env: as `eyas serve` composed them; `env` is the whole environment. PYTHONUNBUFFERED=1 is added, or
            lines that are evidence would wait in a buffer.
        drain_deadline_s: how long the guard lets the engine drain if we die.
        inherited: descriptors that stay open in the engine, under their numbers.

    Raises:
        EngineNotStarted: no such program, or it may not be executed.
        WriteFailed: the log cannot be created.
    """
    environment = {"PYTHONUNBUFFERED": "1", **env}
    try:
        log = os.open(run_folder.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise write_failed(run_folder.log_path, error) from error
    status_read, status_write = os.pipe()
    life_read, life_write = os.pipe()
    script = str(Path(__file__).with_name("guard.py"))
    try:
        keeper = subprocess.Popen(
            [sys.executable, "-I", script, str(status_write), str(life_read), str(drain_deadline_s), *command],
            env=environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(status_write, life_read, *inherited),
            start_new_session=True,
        )
    finally:
        for descriptor in (log, status_write, life_read):
            os.close(descriptor)
    guard_pid = _next_line(status_read).removeprefix("guard ")
    word, _, value = _next_line(status_read).partition(" ")
    if word != "pid":
        os.close(life_write)
        keeper.wait(timeout=10)
        os.close(status_read)
        raise _not_started(command, value)
    return EngineProcess(
        pid=int(value),
        guard_pid=int(guard_pid),
        keeper=keeper,
        log_path=run_folder.log_path,
        status_fd=status_read,
        lifeline_fd=life_write,
        oom_kills_before=count_oom_kills(),
        known={int(value): started_at(int(value)) or 0.0},
    )


def end_orphans(known: Mapping[int, float], session: int) -> int:
    """SIGKILL to an engine's processes that still live, and to their descendants; how many that were.

    Args:
        known: those that were seen, by number, with the time when they began.
        session: that the engine was started in; what was never seen is mostly still in it.
    """
    count = 0
    for _ in range(_ORPHAN_ROUNDS):
        living = {pid for pid, at in known.items() if is_alive(pid) and started_at(pid) == at}
        living |= {pid for pid in psutil.pids() if _session_of(pid) == session}
        found = {p.pid for pid in living for p in tree_of(pid) if p.status != "Z"}
        if not found:
            break
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                count += 1
        time.sleep(_ORPHAN_PAUSE_S)
    return count


def _session_of(pid: int) -> int:
    with suppress(OSError):
        return os.getsid(pid)
    return -1


def _next_line(descriptor: int) -> str:
    """The guard's next line, byte by byte so that nothing after it is lost."""
    text = b""
    end = time.monotonic() + _START_S
    while not text.endswith(b"\n") and (left := end - time.monotonic()) > 0:
        if _is_readable(descriptor, left):
            byte = os.read(descriptor, 1)
            if not byte:
                break
            text += byte
    return text.decode().strip()


def _is_readable(descriptor: int, wait_s: float) -> bool:
    """Whether there is something to read within `wait_s`; also for numbers above those that `select` takes."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN | select.POLLHUP)
    return bool(waiting.poll(max(wait_s, 0.0) * 1000))


def _not_started(command: Sequence[str], errno_text: str) -> EngineNotStarted:
    reason = os.strerror(int(errno_text)) if errno_text.isdigit() else "the guard process did not answer"
    return EngineNotStarted(
        f"cannot start {command[0]}",
        " ".join(command[:6]),
        reason,
        "is the engine installed in this environment? `eyas engines` lists those that are known",
    )


_CGROUP_FILES = ("memory.events", "memory.oom_control")
_OOM_LINE = re.compile(r"(?:Out of memory: Killed process|oom-kill:|Memory cgroup out of memory: Killed process) ?.*")


def count_oom_kills(pid: int | str = "self") -> int | None:
    """The `oom_kill` count of the cgroup of `pid` (v2, else v1); None where it cannot be read."""
    for folder in _cgroup_folders(pid):
        for name in _CGROUP_FILES:
            count = _count_in(folder / name)
            if count is not None:
                return count
    return None


def kernel_words(pids: set[int]) -> str:
    """The kernel log's line on one of these processes being killed for memory; "" if there is none or no access."""
    try:
        done = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    for line in reversed(done.stdout.splitlines()):
        match = _OOM_LINE.search(line)
        if match and any(re.search(rf"\b{pid}\b", line) for pid in pids):
            return match[0][:200]
    return ""


def _cgroup_folders(pid: int | str) -> list[Path]:
    root = Path("/sys/fs/cgroup")
    folders: list[Path] = []
    try:
        for line in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            base = root / controllers.split(",")[0] if controllers else root
            folders += [base / path.lstrip("/"), base]
    except (OSError, ValueError):
        pass
    return [*folders, root]


def _count_in(path: Path) -> int | None:
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return None
