"""The processes of a server, by the kernel's own words: who descends from whom, what each uses. Reads only /proc.

Engines name their processes with setproctitle: "sglang::scheduler_DP0_TP1" (managers/scheduler.py),
"VLLM::EngineCore", "VLLM::Worker_TP0" (utils/system_utils.py; the prefix can be set by VLLM_PROCESS_NAME_PREFIX).
"""

import os
import re
from pathlib import Path

from eyas.serve.facts.evidence import ProcessFacts

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SGLANG = re.compile(
    r"^sglang::(?P<role>scheduler|detokenizer\w*|data_parallel_controller|tokenizer_worker)(?P<ranks>\S*)"
)
_VLLM = re.compile(r"^(?P<prefix>[A-Za-z]\w*)::(?P<name>(?:EngineCore|Worker|APIServer|DPCoordinator|DPSupervisor)\S*)")


def tree_of(root: int, *, main: int | None = None, proc: Path = _PROC) -> tuple[ProcessFacts, ...]:
    """`root` and all that descend from it, as they are now; () when it is gone.

    `main` is who gets the label "main" if it is not root. A process that ends while we look is left out.
    """
    parents: dict[int, int] = {}
    for entry in proc.iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            parents[int(entry.name)] = parent
    if root not in parents:
        return ()
    mine = {root}
    grew = True
    while grew:
        found = {pid for pid, parent in parents.items() if parent in mine and pid not in mine}
        mine |= found
        grew = bool(found)
    return tuple(facts for pid in sorted(mine) if (facts := facts_of(pid, root=main or root, proc=proc)) is not None)


def facts_of(pid: int, *, root: int = 0, proc: Path = _PROC) -> ProcessFacts | None:
    """One process now; None if it is gone."""
    folder = proc / str(pid)
    stat = _stat(folder)
    if stat is None:
        return None
    title = title_of(pid, proc=proc)
    return ProcessFacts(
        pid=pid,
        parent=int(stat[1]),
        title=title,
        label="main" if pid == root and not label_of(title) else label_of(title),
        status=stat[0],
        cpu_s=(int(stat[11]) + int(stat[12])) / _TICKS,
        page_ins=int(stat[9]),
        rss_bytes=int(stat[21]) * _PAGE,
        read_bytes=_read_bytes(folder),
    )


def title_of(pid: int, *, proc: Path = _PROC) -> str:
    """The command line as set by the process itself; for one without any, the kernel's name in brackets."""
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        text = " ".join(word.decode(errors="replace") for word in words).strip()
        return text[:200] or f"[{(proc / str(pid) / 'comm').read_text('utf-8', 'replace').strip()}]"
    except OSError:
        return ""


def label_of(title: str) -> str:
    """ "TP0" or "DP1 TP0" for SGLang's ranks, "Worker_TP0" / "EngineCore" for vLLM's, "" for others."""
    if match := _SGLANG.match(title):
        ranks = match["ranks"].replace("_", " ").strip()
        return ranks or match["role"] if match["role"] == "scheduler" else match["role"]
    if match := _VLLM.match(title):
        return match["name"]
    if "resource_tracker" in title:
        return "resource-tracker"
    if "_inductor/compile_worker" in title:
        return "compile-worker"
    return ""


def is_alive(pid: int) -> bool:
    """There, and not a zombie."""
    stat = _stat(_PROC / str(pid))
    return stat is not None and stat[0] not in ("Z", "X")


def start_ticks(pid: int) -> int | None:
    """When the process began, in kernel ticks: tells a process from a later one with the same number."""
    stat = _stat(_PROC / str(pid))
    return int(stat[19]) if stat is not None else None


def _stat(folder: Path) -> list[str] | None:
    """The fields after the name: [0] state, [1] parent, [9] major faults, [11..12] CPU ticks, [21] resident pages."""
    try:
        return (folder / "stat").read_text(errors="replace", encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None


def _parent(folder: Path) -> int | None:
    stat = _stat(folder)
    return int(stat[1]) if stat else None


def _read_bytes(folder: Path) -> int | None:
    """Bytes that really came from the disk (not the page cache); None where we may not look."""
    try:
        for line in (folder / "io").read_text(encoding="utf-8").splitlines():
            if line.startswith("read_bytes:"):
                return int(line.split()[1])
    except OSError:
        pass
    return None
