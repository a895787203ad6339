"""A server in fake time: what its log, processes, GPUs and endpoints show at which second. Drives the real supervisor.

world = World()
world.log(3, "Load weight begin. avail mem=139.09 GB\\n")
world.at(10, health=503, port="open")
world.process(1, 100, "sglang::scheduler_TP0", cpu=1.0)
run = drive(world, "sglang", "0.5.15.post1", until=600)
run.states  ->  [(0.0, "starting"), (10.0, "warming-up"), ...]
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eyas.serve.facts.evidence import CounterFacts, EndpointAnswer, ExitFacts, GpuFacts, Observation, ProcessFacts
from eyas.serve.facts.state import Event, Snapshot
from eyas.serve.log.log_lines import LineSplitter, parse_bar
from eyas.serve.look.process_tree import label_of
from eyas.serve.look.stacks import RankStack, StackSample
from eyas.serve.supervise.supervisor import Supervisor

LOGS = Path(__file__).parents[1] / "serve" / "logs"
EPOCH = time.mktime((2026, 11, 29, 14, 0, 0, 0, 0, -1))
_STAMP = re.compile(rb"(?:^|[ \[])(?:\d{4}-)?(\d\d-\d\d) (\d\d:\d\d:\d\d)")
_HEALTH = re.compile(rb'"GET /health HTTP/1\.1" (\d+)')


class FakeClock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.time = EPOCH

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@dataclass
class FakeProcess:
    pid: int
    title: str
    parent: int = 1
    status: str = "S"
    cpu: float = 0.0  # cores
    disk: float = 0.0  # bytes/s
    page_ins: float = 0.0  # per s
    cpu_s: float = 0.0
    read_bytes: float = 0.0
    faults: float = 0.0

    def facts(self, root: int) -> ProcessFacts:
        return ProcessFacts(
            pid=self.pid,
            parent=self.parent,
            title=self.title,
            label=label_of(self.title) or ("main" if self.pid == root else ""),
            status=self.status,
            cpu_s=self.cpu_s,
            read_bytes=int(self.read_bytes),
            page_ins=int(self.faults),
        )


@dataclass
class World:
    """What happens when. Times are seconds after the start."""

    events: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    processes: dict[int, FakeProcess] | None = None
    state: dict[str, Any] = field(default_factory=dict)
    stack_frames: Callable[[float], dict[str, Sequence[str]]] | None = None
    root: int = 100
    _text: bytes = b""
    _splitter: LineSplitter = field(default_factory=LineSplitter)
    _last: float | None = None

    # ------------------------------------------------------------------ script

    def log(self, at: float, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        self.events.append((at, lambda: self._append(data)))

    def replay(
        self, name: str, start: float = 0.0, *, until: bytes | None = None, scale: float = 1.0, access: bool = False
    ) -> float:
        """Schedule a real log by its own stamps; the second at which its last line comes.

        until: cut before it. access: /health and the port show what the log's own access lines say.
        """
        at = start
        first: float | None = None
        for line in (LOGS / name).read_bytes().splitlines(keepends=True):
            if until is not None and until in line:
                return at
            match = _STAMP.search(line)
            if match:
                stamp = time.mktime(time.strptime(f"2026-{match[1].decode()} {match[2].decode()}", "%Y-%m-%d %H:%M:%S"))
                first = stamp if first is None else first
                at = max(at, start + (stamp - first) * scale)
            self.log(at, line)
            answered = _HEALTH.search(line) if access else None
            if answered:
                self.at(at, port="open", health=int(answered[1]))
        return at

    def at(self, when: float, **state: Any) -> None:
        """From then on: port, health, canary, counters, gpus, exit."""
        self.events.append((when, lambda: self.state.update(state)))

    def process(self, when: float, pid: int, title: str, **facts: Any) -> None:
        """A process comes, or changes."""

        def come() -> None:
            self.processes = self.processes or {}
            old = self.processes.get(pid)
            self.processes[pid] = (
                FakeProcess(pid=pid, title=title, **facts) if old is None else replace(old, title=title, **facts)
            )

        self.events.append((when, come))

    def gone(self, when: float, pid: int | None = None) -> None:
        """A process ends (all, if none is named)."""
        self.events.append((when, lambda: (self.processes or {}).clear() if pid is None else self._drop(pid)))

    # ------------------------------------------------------------------ Probes and StackTaker

    def observe(self, now: float) -> Observation:
        second = now - EPOCH
        due = sorted((e for e in self.events if e[0] <= second), key=lambda e: e[0])
        self.events = [e for e in self.events if e[0] > second]
        self._pass_time(second)
        for _, change in due:
            change()
        lines = tuple(self._splitter.feed(self._text, now))
        self._text = b""
        health = self.state.get("health")
        if isinstance(health, int):
            health = EndpointAnswer(code=health, elapsed_s=1.0)
        elif isinstance(health, str):
            health = EndpointAnswer(code=0, failure=health)
        if self.state.get("exit") is not None:
            lines += tuple(self._splitter.flush(now))
        return Observation(
            at=now,
            lines=lines,
            pending_bar=parse_bar(self._splitter.pending),
            port=self.state.get("port", "unknown"),
            endpoints={} if health is None else {"/health": health},
            processes=None
            if self.processes is None
            else tuple(p.facts(self.root) for _, p in sorted(self.processes.items())),
            gpus=self.state.get("gpus"),
            counters=self._counters(second),
            exit=self._exit(),
            canary=self.state.get("canary"),
            log_life=self.state.get("log_life", "written"),
            missing=self.state.get("missing", ()),
        )

    def learn(self, engine: str, version: str | None) -> None:
        return

    def take(self, processes: Sequence[ProcessFacts], now: float) -> StackSample:
        frames = self.stack_frames(now - EPOCH) if self.stack_frames is not None else {}
        return StackSample(
            at=now,
            ranks=tuple(
                RankStack(
                    label=p.label,
                    pid=p.pid,
                    status=p.status,
                    how="py-spy",
                    threads={"MainThread (idle)": tuple(frames.get(p.label, ()))},
                    raw="\n".join(frames.get(p.label, ())),
                )
                for p in processes
            ),
        )

    # ------------------------------------------------------------------ inside

    def _append(self, data: bytes) -> None:
        self._text += data

    def _drop(self, pid: int) -> None:
        if self.processes:
            self.processes.pop(pid, None)

    def _pass_time(self, second: float) -> None:
        span = 0.0 if self._last is None else second - self._last
        self._last = second
        for p in (self.processes or {}).values():
            if p.status not in ("T", "Z"):
                p.cpu_s += p.cpu * span
                p.read_bytes += p.disk * span
                p.faults += p.page_ins * span

    def _counters(self, second: float) -> CounterFacts | None:
        value = self.state.get("counters")
        return value(second) if callable(value) else value

    def _exit(self) -> ExitFacts | None:
        value = self.state.get("exit")
        return ExitFacts(code=value) if isinstance(value, int) else value


@dataclass
class Run:
    """What the supervisor said."""

    states: list[tuple[float, str]]
    snapshots: list[Snapshot]
    events: list[Event]
    supervisor: Supervisor

    @property
    def last(self) -> Snapshot:
        return self.snapshots[-1]

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.states]

    @property
    def phases(self) -> list[str]:
        return [str(event.data["phase"]) for event in self.events if event.kind == "phase"]

    def at(self, second: float) -> Snapshot:
        return max((s for s in self.snapshots if s.at - EPOCH <= second), key=lambda s: s.at)


def drive(
    world: World,
    engine: str,
    version: str | None,
    *,
    until: float,
    poll: float = 1.0,
    with_stacks: bool = True,
    do: Callable[[float, Supervisor], None] | None = None,
    **options: Any,
) -> Run:
    """Run the real supervisor over the world for `until` fake seconds, or to a final state."""
    clock = FakeClock()
    supervisor = Supervisor(
        engine=engine,  # type: ignore[arg-type]
        version=version,
        probes=world,
        clock=clock,
        stacks=world if with_stacks else None,
        **options,
    )
    run = Run([], [], [], supervisor)
    supervisor.journal.listeners.append(run.events.append)
    while clock.now() - EPOCH <= until:
        if do is not None:
            do(clock.now() - EPOCH, supervisor)
        snapshot = supervisor.step()
        run.snapshots.append(snapshot)
        if not run.states or run.states[-1][1] != snapshot.state:
            run.states.append((clock.now() - EPOCH, str(snapshot.state)))
        if snapshot.state.is_final:
            break
        clock.sleep(poll)
    return run


def gpu(used: float, utilisation: int = 0, index: int = 0) -> tuple[GpuFacts, ...]:
    """One H200 with `used` GB."""
    return (GpuFacts(index=index, utilisation=utilisation, used_bytes=int(used * 1e9), total_bytes=143 * 10**9),)


def sglang(second: float, message: str, ranks: str = "") -> str:
    """A line as SGLang prints it."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(EPOCH + second))
    return f"[{stamp}{' ' + ranks if ranks else ''}] {message}\n"


def vllm(second: float, message: str, process: str = "APIServer", pid: int = 100, level: str = "INFO") -> str:
    """A line as vLLM prints it."""
    stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(EPOCH + second))
    return f"({process} pid={pid}) {level} {stamp} [core.py:1] {message}\n"
