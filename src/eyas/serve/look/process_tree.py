"""The processes of a server: who descends from whom, what each uses, and who it is by its title.

Engines name their processes with setproctitle ("sglang::scheduler_DP0_TP1", "VLLM::Worker_TP0"): `Life.process`.
"""

import re
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

from eyas.serve.facts.evidence import ProcessFacts
from eyas.serve.log.tables import all_lives

_LETTERS = {
    psutil.STATUS_RUNNING: "R",
    psutil.STATUS_DISK_SLEEP: "D",
    psutil.STATUS_STOPPED: "T",
    psutil.STATUS_TRACING_STOP: "t",
    psutil.STATUS_ZOMBIE: "Z",
    psutil.STATUS_DEAD: "X",
}


def tree_of(root: int, *, main: int | None = None) -> tuple[ProcessFacts, ...]:
    """`root` and all that descend from it, as they are now; () when it is gone.

    `main` is the process that gets the label "main" if it is not root. A process that ends while we look is left out.
    """
    try:
        top = psutil.Process(root)
        pids = sorted([root, *(child.pid for child in top.children(recursive=True))])
    except psutil.Error:
        return ()
    return tuple(facts for pid in pids if (facts := facts_of(pid, root=main or root)) is not None)


def facts_of(pid: int, *, root: int = 0) -> ProcessFacts | None:
    """One process now; None if it is gone."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            title = _title_of(process)
            cpu = process.cpu_times()
            return ProcessFacts(
                pid=pid,
                parent=process.ppid(),
                title=title,
                label=label_of(title) or ("main" if pid == root else ""),
                status=_LETTERS.get(process.status(), "S"),
                cpu_s=cpu.user + cpu.system,
                page_ins=_major_faults(pid),
                rss_bytes=process.memory_info().rss,
                read_bytes=_read_bytes(process),
            )
    except psutil.Error:
        return None


def label_of(title: str) -> str:
    """ "TP0" or "DP1 TP0" for SGLang's ranks, "Worker_TP0" / "EngineCore" for vLLM's, "" for others."""
    for pattern in _titles():
        if match := pattern.match(title):
            groups = match.groupdict(default="")
            return groups.get("ranks", "").replace("_", " ").strip() or groups["role"]
    if "resource_tracker" in title:
        return "resource-tracker"
    if "_inductor/compile_worker" in title:
        return "compile-worker"
    return ""


@cache
def _titles() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(life.process) for life in all_lives() if life.process)


def is_alive(pid: int) -> bool:
    """There, and not a zombie."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def started_at(pid: int) -> float | None:
    """When the process began (unix s): tells a process from a later one with the same number."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def _title_of(process: psutil.Process) -> str:
    """The command line as the process set it; the kernel's name in brackets if it is empty."""
    try:
        return " ".join(process.cmdline()).strip()[:200] or f"[{process.name()}]"
    except psutil.AccessDenied:
        return f"[{process.name()}]"


def _major_faults(pid: int) -> int | None:
    """Pages that had to be read in: the tenth field after the name, which psutil does not give."""
    with suppress(OSError, ValueError, IndexError):
        return int(
            Path(f"/proc/{pid}/stat").read_text(errors="replace", encoding="utf-8").rpartition(")")[2].split()[9]
        )
    return None


def _read_bytes(process: psutil.Process) -> int | None:
    """Bytes that really came from the disk (not the page cache); None where we may not look."""
    with suppress(psutil.Error, OSError):
        return int(process.io_counters().read_bytes)
    return None
