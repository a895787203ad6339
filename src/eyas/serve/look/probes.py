"""The live `Probes`: log, processes, GPUs, port, endpoints and counters of one subject, where known."""

from collections.abc import Callable
from dataclasses import dataclass, field

from eyas.contract.engines.registry import ENGINES
from eyas.serve.facts.containment import Containment
from eyas.serve.facts.evidence import EndpointAnswer, ExitFacts, Identity, LogLife, LogLine, Observation, ProcessFacts
from eyas.serve.facts.state import Engine
from eyas.serve.log.log_tail import LogStream, LogTail, open_log
from eyas.serve.log.log_writers import LogWriters
from eyas.serve.look.endpoints import BackgroundQuestion, Endpoints
from eyas.serve.look.gpu_counters import GpuCounters
from eyas.serve.look.process_tree import is_alive, started_at, tree_of
from eyas.serve.look.subject import Subject, listeners_of

_NO_LINES: tuple[tuple[LogLine, ...], LogLife] = ((), "written")
_NO_PROCESSES: tuple[tuple[ProcessFacts, ...] | None, ExitFacts | None] = (None, None)
_NO_ANSWERS: dict[str, EndpointAnswer] = {}


def _nothing() -> None:
    return None


@dataclass(slots=True)
class LiveProbes:
    """Looks at one subject. Whatever is missing is named in `Observation.missing`."""

    subject: Subject
    log: LogTail | LogStream | None
    endpoints: Endpoints | None
    gpus: GpuCounters
    canary: "BackgroundQuestion[EndpointAnswer] | None" = None
    writers: LogWriters | None = None
    asks_identity: bool = False
    _began_at: float | None = None
    _was_healthy: bool = False
    _port_is_ours: bool = False
    _stranger: str = ""
    _answers: bool = False
    _failed: list[str] = field(default_factory=list)
    _contained: Containment = field(init=False)

    def __post_init__(self) -> None:
        self._contained = Containment(self._failed.append)

    def observe(self, now: float) -> Observation:
        """Look once. What fails leaves its part empty and is named in `missing`."""
        run, endpoints = self._contained.run, self.endpoints
        processes, ended = run("looking at its processes", self._processes, _NO_PROCESSES)
        lines, log_life = run("reading its log", lambda: self._log(now), _NO_LINES)
        health = run("asking for its health", lambda: self._health(processes), _NO_ANSWERS)
        self._was_healthy = any(answer.code == 200 for answer in health.values())
        self._answers = any(answer.code for answer in health.values())
        pids = None if processes is None else [p.pid for p in processes]
        counters = endpoints.counters if endpoints is not None and self._was_healthy else _nothing
        canary = self.canary.poll if self.canary is not None and self._was_healthy else _nothing
        return Observation(
            at=now,
            lines=lines,
            pending_bar=self.log.pending_bar if self.log is not None else None,
            port=run("looking at its port", endpoints.port, "unknown") if endpoints is not None else "unknown",
            endpoints=health,
            processes=processes,
            # Only where we see its processes: the server behind a URL may be on another machine, with other GPUs.
            gpus=None if pids is None else run("reading GPU counters", lambda: self.gpus.read(pids), None),
            counters=run("reading its counters", counters, None),
            exit=ended,
            canary=run("asking a canary", canary, None),
            identity=run("asking who answers", self._identity, None),
            log_life=log_life,
            log_written_at=self.log.written_at if self.log is not None else None,
            has_log_age=self.log is None or self.log.has_age,
            missing=self._what_is_missing(),
        )

    def _health(self, processes: tuple[ProcessFacts, ...] | None) -> dict[str, EndpointAnswer]:
        health = self.endpoints.health(is_ready=self._was_healthy) if self.endpoints is not None else {}
        return health if health and self._answers_for_us(processes) else {}

    def learn(self, engine: str, version: str | None) -> None:
        """Pass it on to the endpoints."""
        if self.endpoints is not None and engine in ENGINES:
            self.endpoints.learn(engine, version)
            self.asks_identity = self.log is None

    def _log(self, now: float) -> tuple[tuple[LogLine, ...], LogLife]:
        """What is new in the log; where no process writes it, with its last line even without an end."""
        if isinstance(self.log, LogStream):
            lines = self.log.read(now)
            return lines, "over" if self.log.has_ended and self.subject.log_only else "written"
        if self.log is None or self.writers is None:
            return (self.log.read(now) if self.log is not None else ()), "written"
        lines = self.log.read(now, is_open=self.writers.is_open(now))
        life = self.writers.life(now, is_copy=self.log.is_copy)
        return (lines if life == "written" else lines + self.log.read(now)), life

    def _processes(self) -> tuple[tuple[ProcessFacts, ...] | None, ExitFacts | None]:
        if self.subject.pid is None:
            return None, None
        process = self.subject.process
        if process is not None:
            ended = self._contained.run("asking how it ended", process.exit_facts, None)
            tree = tuple(p for p in tree_of(process.guard_pid, main=process.pid) if p.pid != process.guard_pid)
            for pid in {p.pid for p in tree} - process.known.keys():
                process.known[pid] = started_at(pid) or 0.0
            return tree, ended
        began_at = started_at(self.subject.pid)
        self._began_at = self._began_at if self._began_at is not None else began_at
        if began_at is None or began_at != self._began_at or not is_alive(self.subject.pid):
            return (), ExitFacts(code=None)
        return tree_of(self.subject.pid), None

    def _answers_for_us(self, processes: tuple[ProcessFacts, ...] | None) -> bool:
        """False when another process answers on the port of the server that we started: two launches can find it free.

        Seen once as ours it stays ours; where it cannot be seen (another user's processes) it is believed.
        """
        if self.subject.process is None or self.endpoints is None or self._port_is_ours or not processes:
            return True
        owners = listeners_of(self.endpoints.port_number)
        self._port_is_ours = not owners.isdisjoint(p.pid for p in processes)
        if not owners or self._port_is_ours:
            return True
        self._stranger = (
            f"port {self.endpoints.port_number} is answered by process {min(owners)}, which is not of this launch: "
            "its answers are not counted; choose another --port"
        )
        return False

    def _identity(self) -> Identity | None:
        """Which engine answers: asked only while it is not known, and only when something answers."""
        return self.endpoints.identity() if self.asks_identity and self.endpoints and self._answers else None

    def _what_is_missing(self) -> tuple[str, ...]:
        notes = [self.gpus.missing] if self.gpus.missing and self.subject.pid is not None else []
        if self.endpoints is not None:
            notes += self.endpoints.notes
        if self.log is not None:
            notes.append(self.log.note)
        questions = (self.endpoints.questions if self.endpoints is not None else ()) + (self.canary,)
        notes += [question.failed for question in questions if question is not None]
        notes += [self._stranger, *self._failed]
        return tuple(note for note in notes if note)


def live_probes(
    subject: Subject,
    *,
    engine: Engine,
    version: str | None,
    api_key: str | None = None,
    canary: Callable[[], EndpointAnswer] | None = None,
    canary_every_s: float = 60.0,
    follow: bool | None = None,
) -> LiveProbes:
    """Probes for a subject.

    Args:
        canary: a generation to make now and then (it writes to the server: only if wished for).
        follow: whether a log that is all there is will be written on; None = found out.

    Raises:
        LogUnreadable: the log that was named cannot be read.
    """
    return LiveProbes(
        subject=subject,
        log=open_log(subject.log, must_exist=subject.process is None) if subject.log is not None else None,
        endpoints=Endpoints(subject.url, engine, version, api_key) if subject.url is not None else None,
        gpus=GpuCounters(),
        canary=BackgroundQuestion(canary, canary_every_s) if canary is not None else None,
        writers=LogWriters(subject.log, follow) if subject.log is not None and subject.log_only else None,
        asks_identity=engine == "unknown",
    )
