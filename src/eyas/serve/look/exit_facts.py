"""Whether the kernel's OOM killer was at work: the cgroup's count, and dmesg where it may be read."""

import re
import subprocess
from pathlib import Path

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
