"""What one look at a server shows, and what moved between two looks. Facts only: no states, no verdicts.

`Probes.observe` is the border to the world: the live one reads /proc, sockets and HTTP (`probes.py`), tests replay
recorded observations in fake time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

Port = Literal["open", "refused", "unknown"]
LogLife = Literal["written", "over", "closed", "unfollowed"]

WITHOUT_HEALTH = (401, 403, 404, 405)  # codes of a server whose /health is closed or missing: /v1/models decides
_CPU_SHARE = 0.2  # of one core: what a polling parent does while it waits stays below
_DISK_BYTES = 1 << 20
_PAGE_INS = 10
_GPU_MEMORY_BYTES = 8 << 20
_GPU_UTIL_PERCENT = 5
_COMPILERS = (
    "nvcc",
    "cicc",
    "ptxas",
    "cudafe++",
    "ninja",
    "cc1plus",
    "cc1",
    "c++",
    "g++",
    "gcc",
    "clang",
    "ld",
    "hipcc",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A progress bar as tqdm prints it; `eta_s` None while it says "?"."""

    label: str
    done: float
    total: float
    eta_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line.

    Attributes:
        number: line number in the file as an editor counts it, from 1 (a bar's states share one).
        at: unix time when it was printed, or seen; filled by who read it.
        label: process or rank: "TP0", "DP1 TP0", "EngineCore", "Worker_TP1"; "" if the line has none.
        pid: the process, if printed.
        level: "INFO", "ERROR", ...; "" if the line has no level.
        stamp: the time as printed, unix seconds in this machine's zone (the year is ours if it has none), or None.
        message: the text without its prefixes. raw: the text with them.
        bar: the progress bar in it, if one.
    """

    number: int
    at: float
    label: str
    pid: int | None
    level: str
    stamp: float | None
    message: str
    raw: str
    bar: Bar | None = None

    @property
    def has_prefix(self) -> bool:
        """Printed by a logger: with a time, a level or its process."""
        return self.stamp is not None or bool(self.level or self.label)

    @property
    def has_full_date(self) -> bool:
        """Stamped with its year, as SGLang does; vLLM, which prints a level too, leaves it out."""
        return self.stamp is not None and not self.level


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointAnswer:
    """One endpoint's answer: `code` 0 = no HTTP answer, then `failure` is "refused", "timeout" or "broken"."""

    code: int
    failure: str = ""
    elapsed_s: float = 0.0

    def __str__(self) -> str:
        return str(self.code) if self.code else self.failure


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """One process of the server's tree.

    Attributes:
        pid, parent: as the kernel says. title: the command line's first words (engines set it with setproctitle).
        label: rank or role by title ("TP0", "EngineCore", "detokenizer", ...).
        status: R running, S sleeping, D disk, T stopped, Z zombie (as in /proc).
        cpu_s: user + system time so far. read_bytes: from disk so far. page_ins: major faults so far; both None
            where /proc does not let us read them.
    """

    pid: int
    parent: int
    title: str
    label: str
    status: str
    cpu_s: float
    rss_bytes: int = 0
    read_bytes: int | None = None
    page_ins: int | None = None

    @property
    def name(self) -> str:
        """The program's name: the title's first word without its folder."""
        return self.title.split(" ")[0].rsplit("/", 1)[-1]

    @property
    def is_compiler(self) -> bool:
        """A compiler or build tool: kernels are being JIT-compiled."""
        return self.name in _COMPILERS


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU: utilisation in percent, memory in bytes; `is_mine` when a process of the server's tree is on it."""

    index: int
    utilisation: int
    used_bytes: int
    total_bytes: int
    is_mine: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitFacts:
    """How the subject ended: `code` as the shell says (137 = SIGKILL), None if it cannot be known (not our child).

    Attributes:
        num_oom_kills: the cgroup's oom_kill count less what it was at the start; None = not readable.
        oom_text: the kernel's words, if dmesg could be read and has them.
        asked: we (or someone, seen in the log) asked it to end.
    """

    code: int | None
    num_oom_kills: int | None = None
    oom_text: str = ""
    asked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterFacts:
    """Token and speculation counters since the server's start (from `eyas.client`); None = the server has none.

    Attributes:
        generation_tokens: tokens made. running: requests now (and waiting ones).
        rounds, accepted_at: verify passes, and per position those in which that draft was accepted.
        mark: numbers of which at least one changes when the engine does anything; () where there are none.
        rank_lengths: data-parallel rank -> accept length, as the engine counts or reports it; {} where it does not.
    """

    generation_tokens: float | None = None
    running: float | None = None
    rounds: float | None = None
    accepted_at: tuple[float, ...] = ()
    mark: tuple[float, ...] = ()
    rank_lengths: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who answers there: engine "unknown" if it does not say; `is_foreign` if it has none of an engine's routes."""

    engine: str = "unknown"
    version: str | None = None
    model: str = ""
    is_foreign: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One look. What was not or could not be looked at is None or empty, and `missing` says why (each said once).

    Attributes:
        log_life: of a log that is all there is: "written" by a process, "over" (by none), "closed" by a writer
            that we had seen, "unfollowed" (read to its end, as asked).
        log_written_at: when the file was last written, where that is the time of its last line; None = not known.
        has_log_age: the times of its lines are real ones, not only right among themselves.
    """

    at: float
    lines: tuple[LogLine, ...] = ()
    pending_bar: Bar | None = None
    port: Port = "unknown"
    endpoints: Mapping[str, EndpointAnswer] = field(default_factory=dict)
    processes: tuple[ProcessFacts, ...] | None = None
    gpus: tuple[GpuFacts, ...] | None = None
    counters: CounterFacts | None = None
    exit: ExitFacts | None = None
    canary: EndpointAnswer | None = None
    identity: Identity | None = None
    log_life: LogLife = "written"
    log_written_at: float | None = None
    has_log_age: bool = True
    missing: tuple[str, ...] = ()


class Probes(Protocol):
    """Looks at a server."""

    def observe(self, now: float) -> Observation:
        """Look once, within about a second, without disturbing the server."""

    def learn(self, engine: str, version: str | None) -> None:
        """The log has told which engine it is; its endpoints can be asked accordingly."""


def moved_between(before: Observation | None, now: Observation) -> dict[str, str]:
    """Kind of evidence -> words, for everything that moved since the last look (log lines are judged elsewhere)."""
    if before is None:
        return {"first-look": "first look"}
    moved: dict[str, str] = {}
    if before.port != now.port:
        moved["port"] = f"port {before.port} -> {now.port}"
    for path, answer in now.endpoints.items():
        earlier = before.endpoints.get(path)
        if earlier is not None and str(earlier) != str(answer):
            moved["endpoint"] = f"{path} {earlier} -> {answer}"
    moved |= _process_moves(before, now)
    moved |= _gpu_moves(before, now)
    if before.counters is not None and now.counters is not None and before.counters.mark != now.counters.mark:
        moved["tokens"] = "the engine's counters moved"
    if tokens := _grown(before.counters, now.counters):
        moved["tokens"] = f"{tokens:.0f} tokens generated"
    return moved


def _process_moves(before: Observation, now: Observation) -> dict[str, str]:
    if before.processes is None or now.processes is None:
        return {}
    old = {p.pid: p for p in before.processes}
    new = {p.pid: p for p in now.processes}
    span = max(now.at - before.at, 1e-3)
    moved: dict[str, str] = {}
    came, gone = [p for i, p in new.items() if i not in old], [p for i, p in old.items() if i not in new]
    if came or gone:
        moved["processes"] = f"{len(came)} processes came, {len(gone)} went"
    both = [(old[i], p) for i, p in new.items() if i in old]
    cpu = sum(b.cpu_s - a.cpu_s for a, b in both)
    if cpu / span >= _CPU_SHARE:
        moved["cpu"] = f"{cpu / span:.1f} cores busy"
    disk = sum(max((b.read_bytes or 0) - (a.read_bytes or 0), 0) for a, b in both)
    if disk >= _DISK_BYTES:
        moved["disk"] = f"{disk / span / 1e6:.0f} MB/s read from disk"
    faults = sum(max((b.page_ins or 0) - (a.page_ins or 0), 0) for a, b in both)
    if faults >= _PAGE_INS:
        moved["page-ins"] = f"{faults} pages read in"
    compilers = [p for p in new.values() if p.is_compiler and p.status not in ("T", "Z")]
    if compilers and ("cpu" in moved or came):
        moved["compilers"] = f"{len(compilers)} compilers at work ({compilers[0].name})"
    return moved


def _gpu_moves(before: Observation, now: Observation) -> dict[str, str]:
    if before.gpus is None or now.gpus is None:
        return {}
    old = {g.index: g for g in before.gpus}
    moved: dict[str, str] = {}
    mine = [g for g in now.gpus if g.is_mine and g.index in old]
    change = max((abs(g.used_bytes - old[g.index].used_bytes) for g in mine), default=0)
    if change >= _GPU_MEMORY_BYTES:
        moved["gpu-memory"] = f"GPU memory changed by {change / 2**20:.0f} MiB"
    busiest = max((g.utilisation for g in mine), default=0)
    if busiest >= _GPU_UTIL_PERCENT:
        moved["gpu-util"] = f"GPU {busiest} % busy"
    return moved


def _grown(before: CounterFacts | None, now: CounterFacts | None) -> float:
    if before is None or now is None or before.generation_tokens is None or now.generation_tokens is None:
        return 0.0
    return max(now.generation_tokens - before.generation_tokens, 0.0)
