"""From evidence to a state: the rules, in the order in which they hold. Remembers when what was seen; does nothing.

Order: ended -> frozen -> draining -> serving or not by HTTP and log -> moving within the phase's budget -> stalled.
A phase has a budget without progress, not a time limit: a server that still moves is never called hung.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from eyas.serve.facts.evidence import WITHOUT_HEALTH, EndpointAnswer, Observation
from eyas.serve.facts.state import Assessment, Engine, StateName
from eyas.serve.log.phases import PhaseTracker
from eyas.serve.log.tables import Life, PhaseRule, all_lives
from eyas.serve.supervise.liveness import TokenProgress
from eyas.serve.supervise.log_rules import LastWords, how_it_ends, log_assessment
from eyas.serve.supervise.strangers import Strangers, is_other_program

# Evidence of work by itself; a phase's `strong` adds to it. CPU and GPU load are weak: an NCCL spin has both.
_STRONG = frozenset(
    {
        "log",
        "progress",
        "phase",
        "port",
        "endpoint",
        "tokens",
        "disk",
        "page-ins",
        "gpu-memory",
        "processes",
        "compilers",
    }
)
_WEAK = frozenset({"cpu", "gpu-util"})
_GRACE_S = 20.0  # between the log's "ready" and the first good answer
_SILENT_PORT_S = 60.0  # SGLang answers /health after 20 s at the latest, vLLM at once
_NO_ENGINE = "no engine that eyas knows answers like this; is the port right?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long we wait before we speak.

    Attributes:
        frozen_s: how long a process may be stopped by a signal. second_sample_s: between two samples of stacks.
        scale: factor for every phase's budget; below 1 for engines that start fast, above for very large models.
    """

    frozen_s: float = 10.0
    second_sample_s: float = 10.0
    scale: float = 1.0


@dataclass(slots=True)
class StateRules:
    """What the rules remember.

    Attributes:
        strong_at: when anything last counted as progress; the beginning, before that. weak_at: CPU or GPU load as well.
        log_only: only a log is known: no process, port or endpoint. last_line_at: None = it has no line yet.
    """

    engine: Engine
    tracker: PhaseTracker
    strong_at: float
    log_only: bool = False
    patience: Patience = field(default_factory=Patience)
    last_line_at: float | None = None
    weak_at: float = 0.0
    last_moves: dict[str, tuple[float, str]] = field(default_factory=dict)
    ever_healthy: bool = False
    stop_asked: bool = False
    _ranks: dict[int, str] = field(default_factory=dict)
    _frozen_since: float | None = None
    _sick_since: float | None = None
    _strangers: Strangers = field(default_factory=Strangers)
    _tokens: TokenProgress = field(default_factory=TokenProgress)
    _no_tokens_s: float = 0.0
    _tokens_at: float = 0.0

    # ------------------------------------------------------------------ memory

    def note_moves(self, moves: Mapping[str, str], at: float) -> None:
        """What moved: words by kind of evidence."""
        strong = _STRONG | self.rule.strong
        for kind, words in moves.items():
            self.last_moves[kind] = (at, words)
            if kind in strong:
                self.strong_at = max(self.strong_at, at)
            if kind in strong or kind in _WEAK:
                self.weak_at = max(self.weak_at, at)
            if kind == "tokens":
                self._tokens_at = at

    def forget_processes(self) -> None:
        """A new start in the same log and tree: processes that were there before are not missed."""
        self._ranks.clear()
        self.ever_healthy, self._sick_since = False, None

    @property
    def _life(self) -> Life:
        return self.tracker.table.life

    @property
    def rule(self) -> PhaseRule:
        """The current phase's rule."""
        return self.tracker.table.phases[self.tracker.current.id]

    def quiet_s(self, now: float) -> float:
        """Since anything counted as progress."""
        return now - self.strong_at

    def budget_s(self, now: float) -> float:
        """How long this phase may be quiet: longer while a process uses the CPU or GPU."""
        rule, scale = self.rule, self.patience.scale
        spins = now - self.weak_at < rule.quiet_s * scale and self.weak_at > self.strong_at
        return (rule.busy_s if spins else rule.quiet_s) * scale

    def last_words(self, seen: Observation, has_crash_evidence: bool) -> LastWords:
        """What the log said last."""
        return LastWords(
            engine=self.engine,
            tracker=self.tracker,
            last_line_at=self.last_line_at,
            quiet_s=self.quiet_s(seen.at),
            has_crash_evidence=has_crash_evidence,
        )

    # ------------------------------------------------------------------ rules

    def decide(self, seen: Observation, *, has_crash_evidence: bool) -> Assessment:
        """The state that the evidence gives, this look included."""
        self._remember_health(seen)
        self._no_tokens_s = self._tokens.feed(seen.counters, seen.at)
        rules = (
            self._ended,
            self._of_log,
            self._frozen,
            self._draining,
            self._rank_gone,
            self._by_http,
            self._serving,
        )
        for rule in rules:
            verdict = rule(seen, has_crash_evidence)
            if verdict is not None:
                return verdict
        return self._starting(seen)

    def _remember_health(self, seen: Observation) -> None:
        health = self._health(seen)
        if health is not None and health.code == 200:
            self.ever_healthy, self._sick_since = True, None
        elif health is not None and self.ever_healthy and self._sick_since is None:
            self._sick_since = seen.at
        stopped = [p for p in seen.processes or () if p.status in ("T", "t")]
        self._frozen_since = (self._frozen_since or seen.at) if stopped else None

    def _ended(self, seen: Observation, has_crash_evidence: bool) -> Assessment | None:
        facts = seen.exit
        if facts is None:
            return None
        tracker = self.tracker
        asked = facts.asked or self.stop_asked
        if asked and not tracker.core_died:
            return Assessment(state=StateName.STOPPED, reason=f"ended after it was asked to (exit code {facts.code})")
        said_goodbye = tracker.draining_at is not None or tracker.finished_at is not None
        code = "not known" if facts.code is None else facts.code
        crashed = Assessment(state=StateName.CRASHED, reason=f"the process ended (exit code {code})")
        if tracker.core_died or tracker.self_killed or has_crash_evidence:
            return crashed
        drained = tracker.finished_at is not None and tracker.draining_at is not None
        tidy = self._life.tidy_exit_codes if drained else (0,)
        if facts.code in tidy or (facts.code in (130, 143, None) and said_goodbye):
            return Assessment(state=StateName.STOPPED, reason=f"ended by itself (exit code {code})")
        return crashed

    def _of_log(self, seen: Observation, has_crash_evidence: bool) -> Assessment | None:
        return log_assessment(seen, self.last_words(seen, has_crash_evidence)) if self.log_only else None

    def _frozen(self, seen: Observation, _: bool) -> Assessment | None:
        if self._frozen_since is None or seen.at - self._frozen_since < self.patience.frozen_s:
            return None
        stopped = [p for p in seen.processes or () if p.status in ("T", "t")]
        names = ", ".join(f"{p.label or p.title[:30]} (pid {p.pid})" for p in stopped)
        return Assessment(
            state=StateName.STALLED,
            reason=f"stopped by a signal for {seen.at - self._frozen_since:.0f} s: {names}",
            suspects_stall=True,
        )

    def _draining(self, seen: Observation, _: bool) -> Assessment | None:
        tracker = self.tracker
        if (tracker.self_killed or tracker.core_died) and seen.port != "refused":
            there = "; its process is still there" if seen.processes else ""
            there = there or ("; its port is still open" if seen.port == "open" else "")
            return Assessment(state=StateName.UNHEALTHY, reason=f"the log reports the engine's death{there}")
        if tracker.dying_at is not None and not self.log_only:
            return Assessment(state=StateName.UNHEALTHY, reason="the engine is dying: it ends its processes")
        if self.stop_asked or tracker.draining_at is not None:
            by = "eyas asked it to end" if self.stop_asked else "the log says that it shuts down"
            return Assessment(state=StateName.DRAINING, reason=by)
        if tracker.finished_at is not None:
            return Assessment(state=StateName.DRAINING, reason="the log says that the engine ends its processes")
        return None

    def _rank_gone(self, seen: Observation, _: bool) -> Assessment | None:
        """A rank that was there and is not: the HTTP server may not know (sglang#18421, vllm#39863)."""
        if seen.processes is None:
            return None
        living = {p.pid: p.label for p in seen.processes if p.status != "Z"}
        self._ranks |= {pid: label for pid, label in living.items() if label.startswith(_rank_labels())}
        gone = [f"{label} (pid {pid})" for pid, label in self._ranks.items() if pid not in living]
        if not gone:
            return None
        return Assessment(state=StateName.UNHEALTHY, reason=f"gone, while its server lives: {', '.join(gone)}")

    def _by_http(self, seen: Observation, _: bool) -> Assessment | None:
        health = self._health(seen)
        if health is None:
            return None
        if health.code == 200 and seen.identity is not None and seen.identity.is_foreign and self._is_url_alone(seen):
            why = f"/health answers 200, but /v1/models and /version are not there: {_NO_ENGINE}"
            return Assessment(state=StateName.NO_ENGINE, reason=why)
        if health.code == 200:
            return self._alive(seen, "/health answers 200", health)
        if health.code == 503 and self._life.health_503:
            return Assessment(state=StateName.UNHEALTHY, reason=self._life.health_503)
        if health.code == 503:
            return self._after_503(seen)
        if self.ever_healthy:
            return self._was_healthy(seen, health)
        if health.code in WITHOUT_HEALTH and seen.endpoints.get("/v1/models", EndpointAnswer(code=0)).code == 200:
            return self._alive(seen, "/v1/models answers 200 (/health is closed or missing)", None)
        return None

    def _after_503(self, seen: Observation) -> Assessment:
        ready_at = self.tracker.ready_at
        if not self.ever_healthy and (ready_at is None or seen.at - ready_at < _GRACE_S):
            quiet = self.quiet_s(seen.at)
            if quiet > self.budget_s(seen.at) and self.tracker.current.id == "warm-up":
                return Assessment(
                    state=StateName.STALLED,
                    reason=f"the warm-up request has not ended and nothing has moved for {quiet:.0f} s",
                    suspects_stall=True,
                )
            return Assessment(
                state=StateName.WARMING_UP,
                reason="/health answers 503 and it was never ready: HTTP is up, the warm-up request is running",
            )
        if seen.at - self._tokens_at < 30 and self._tokens_at:
            return Assessment(
                state=StateName.READY,
                reason="tokens flow",
                warnings=("/health answers 503 though tokens flow: a batch longer than its 20 s",),
            )
        return Assessment(state=StateName.UNHEALTHY, reason="/health answers 503 after it had been ready")

    def _was_healthy(self, seen: Observation, health: EndpointAnswer) -> Assessment:
        sick = seen.at - (self._sick_since if self._sick_since is not None else seen.at)
        if health.failure == "refused" and seen.processes is None:
            return Assessment(
                state=StateName.UNREACHABLE, reason=f"it was ready and now refuses connections ({sick:.0f} s)"
            )
        return Assessment(
            state=StateName.UNHEALTHY, reason=f"/health: {health} for {sick:.0f} s after it had been ready"
        )

    def _serving(self, seen: Observation, _: bool) -> Assessment | None:
        ready_at, health = self.tracker.ready_at, self._health(seen)
        if ready_at is None:
            return None
        has_url = health is not None or seen.port in ("open", "refused")
        if has_url and seen.at - ready_at <= _GRACE_S:
            answer = health or f"no answer, port {seen.port}"
            return Assessment(state=StateName.STARTING, reason=f"the log says ready; /health not yet: {answer}")
        ends_so = f", and ends so ({how_it_ends(seen, self.last_line_at)})" if seen.log_life != "written" else ""
        verdict = self._alive(seen, f"the log says that it is ready{ends_so}", None)
        if health is not None:
            warning = f"the log says ready, but /health: {health}; is the URL right?"
            return Assessment(state=verdict.state, reason=verdict.reason, warnings=(*verdict.warnings, warning))
        return verdict

    def _alive(self, seen: Observation, why: str, health: EndpointAnswer | None) -> Assessment:
        """Judge a server that calls itself ready: do tokens come?"""
        warnings: list[str] = []
        if health is not None and health.elapsed_s < self._life.constant_health_s:
            warnings.append("/health answers at once: it seems to be switched to a constant 200 and proves nothing")
        limit = self.tracker.table.phases["ready"].quiet_s * self.patience.scale
        if seen.canary is not None and seen.canary.code != 200:
            return Assessment(
                state=StateName.STALLED,
                reason=f"{why}, but a canary generation got no answer ({seen.canary}, {seen.canary.elapsed_s:.0f} s)",
                suspects_stall=True,
            )
        if self._no_tokens_s > limit:
            running = seen.counters.running if seen.counters and seen.counters.running else 0
            return Assessment(
                state=StateName.STALLED,
                reason=f"{why}, but {running:.0f} requests run and no token has come for {self._no_tokens_s:.0f} s",
                suspects_stall=True,
            )
        stats = self.tracker.serving
        if stats.get("running", 0) > 0 and stats.get("throughput", 1) == 0 and "tokens" not in self.last_moves:
            warnings.append("its log counts running requests at 0 tokens/s")
        return Assessment(state=StateName.READY, reason=why, warnings=tuple(warnings))

    def _starting(self, seen: Observation) -> Assessment:
        is_url_only = self._knows_url_only(seen)
        if is_url_only and seen.port != "open" and not self.last_moves.get("log"):
            return Assessment(
                state=StateName.UNREACHABLE,
                reason="nothing listens there; without a process or a log, starting and dead look the same",
            )
        silent_s = self._strangers.silent_s(seen)
        if silent_s >= _SILENT_PORT_S * self.patience.scale and seen.processes is None and "log" not in self.last_moves:
            why = f"its port accepts connections, and /health has not answered for {silent_s:.0f} s"
            return Assessment(state=StateName.STALLED, reason=why, suspects_stall=True)
        if self.engine == "unknown" and not self.tracker.knows_a_line and is_other_program(seen):
            names = sorted({p.name for p in seen.processes or ()})[:4]
            reason = f"{', '.join(names)}: this program is not an engine that eyas knows"
            return Assessment(state=StateName.NO_ENGINE, reason=reason)
        odd = self._strangers.odd_answer(seen)
        if odd and is_url_only and self._strangers.are_foreign(seen):
            return Assessment(state=StateName.NO_ENGINE, reason=f"{odd}: {_NO_ENGINE}")
        state = StateName.WARMING_UP if self.tracker.current.id == "warm-up" else StateName.STARTING
        quiet, budget = self.quiet_s(seen.at), self.budget_s(seen.at)
        if quiet > budget:
            note = " (only its log is known: it may also be dead)" if self.log_only else ""
            return Assessment(
                state=StateName.STALLED,
                reason=f"nothing has moved for {quiet:.0f} s; this phase may be silent for {budget:.0f} s{note}",
                suspects_stall=True,
            )
        return Assessment(state=state, reason=odd or self._latest_move(seen.at))

    def _is_url_alone(self, seen: Observation) -> bool:
        """Only the URL is known: no process or log line, now or earlier, shows that an engine answers there."""
        return seen.processes is None and not self.log_only and not self.tracker.knows_a_line

    def _knows_url_only(self, seen: Observation) -> bool:
        """Neither a process nor a log has told anything of an engine."""
        return seen.processes is None and not self.log_only and not self.tracker.facts and len(self.tracker.runs) == 1

    # ------------------------------------------------------------------ words

    def _health(self, seen: Observation) -> EndpointAnswer | None:
        return seen.endpoints.get("/health")

    def _latest_move(self, now: float) -> str:
        moves = [item for item in self.last_moves.items() if item[0] != "first-look"]
        newest = max(moves, key=lambda item: item[1][0], default=None)
        if newest is None:
            return self.tracker.title_of(self.tracker.current)
        kind, (at, words) = newest
        return f"{kind}: {words}" + (f", {now - at:.0f} s ago" if now - at >= 2 else "")

    def activity(self, now: float) -> str:
        """What works in a silent phase: compilers, disk, or ""."""
        recent = [
            words
            for kind in ("compilers", "disk")
            if (move := self.last_moves.get(kind)) is not None
            for at, words in [move]
            if now - at < 10
        ]
        return ", ".join(recent)

    def unmoved(self, now: float) -> tuple[str, ...]:
        """What did not move, each with how long: the evidence of a stall."""
        moves = sorted((kind, move) for kind, move in self.last_moves.items() if kind != "first-look")
        rows = [f"{kind}: last {now - at:.0f} s ago ({words})" for kind, (at, words) in moves]
        return tuple(rows) or ("nothing has moved since eyas began to watch",)


def _rank_labels() -> tuple[str, ...]:
    return tuple(label for life in all_lives() for label in life.ranks)
