"""The state machine over evidence: one `step` observes, judges, remembers; `run` repeats it until a wanted state.

    folder  = RunFolder.create(runs, engine="sglang")
    process = start_process(command, env, folder)
    probes  = live_probes(Subject.of_process(process, url=url), engine="sglang", version=version)
    watcher = Supervisor(engine="sglang", version=version, probes=probes, stacks=LiveStackTaker(), folder=folder, ...)
    snapshot = watcher.run(until={StateName.READY}, on_snapshot=view.show, on_event=...)
    watcher.prove(Proof(ok=..., text=...))  # the first-minute verdict: ready -> proven

Nothing here sends a signal, starts a process or prints. Clock, probes and stacks are arguments, for tests in fake time.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from eyas.contract.engines.registry import ENGINES
from eyas.serve.facts.clock import Clock, SystemClock
from eyas.serve.facts.containment import Containment
from eyas.serve.facts.evidence import LogLine, Observation, Probes, moved_between
from eyas.serve.facts.run_folder import RunFolder
from eyas.serve.facts.state import (
    Assessment,
    Cause,
    Engine,
    Event,
    PhaseRow,
    PhaseView,
    Proof,
    Snapshot,
    StateName,
)
from eyas.serve.log.phases import DONE, PhaseTracker
from eyas.serve.log.tables import engine_of_line, table_for
from eyas.serve.look.stacks import StackTaker
from eyas.serve.supervise.crash import CrashReader
from eyas.serve.supervise.journal import Journal
from eyas.serve.supervise.liveness import AcceptanceWatch, logged_proof
from eyas.serve.supervise.phase_times import PhaseMemory, PhaseTimes, StartKey
from eyas.serve.supervise.shown import ProgressTeller, gpu_views, phase_rows, phase_view, rank_view
from eyas.serve.supervise.stall import StallContext, StallWatch
from eyas.serve.supervise.state_rules import Patience, StateRules

_NAP_S = 1.0
_RANK_NOT_LOADED = "rank-not-loaded"
_EARLY_LINES = 500
_LONGEST_SILENT_LAUNCH_S = 600.0
_NO_PROOF = "speculation does not work"


@dataclass(slots=True)
class Supervisor:
    """Judges one server.

    Args:
        engine, version: they select the marker table. "unknown": found out from the log or URL.
        probes: how to look. stacks: how to take stacks, None = never (a URL, a log).
        patience: how long to wait before something is called a stall.
        log_only: only a log is known. has_log: whether a log is known at all.
        folder: where events, stacks and the timeline are written; None = nowhere.
        memory, key: remembered durations for the ETA.
    """

    engine: Engine
    version: str | None
    probes: Probes
    clock: Clock = field(default_factory=SystemClock)
    stacks: StackTaker | None = None
    patience: Patience = field(default_factory=Patience)
    log_only: bool = False
    has_log: bool = True
    folder: RunFolder | None = None
    memory: PhaseMemory | None = None
    key: StartKey | None = None
    journal: Journal = field(init=False)
    _contained: Containment = field(init=False)
    _tracker: PhaseTracker = field(init=False)
    _crash: CrashReader = field(init=False)
    _rules: StateRules = field(init=False)
    _stall: StallWatch = field(init=False)
    _times: PhaseTimes = field(init=False)
    _acceptance: AcceptanceWatch = field(default_factory=AcceptanceWatch)
    _last: Snapshot | None = None
    _seen: Observation | None = None
    _proof: Proof | None = None
    _last_line: str = ""
    _progress: ProgressTeller = field(default_factory=ProgressTeller)
    _is_past: bool = False
    _is_unknown: bool = False
    _early: list[LogLine] = field(default_factory=list)

    def __post_init__(self) -> None:
        now = self.clock.now()
        self.journal = Journal(self.folder, now)
        self._contained = Containment(lambda text: self.journal.warn(text, at=self.clock.now()))
        table = table_for(self.engine, self.version)
        self._tracker = PhaseTracker(table, now, "launch" if self.has_log else "start")
        self._crash = CrashReader(table)
        self._rules = StateRules(self.engine, self._tracker, now, self.log_only, self.patience)
        self._stall = StallWatch(self.stacks, self.clock, self.folder, self.patience.second_sample_s)
        self._times = PhaseTimes(self.memory, self.key)

    # ------------------------------------------------------------------ for the caller

    def step(self) -> Snapshot:
        """Observe once and say what the server is doing now. Never raises: see `facts/containment.py`."""
        snapshot = self._contained.run("judging", self._step, None)
        if snapshot is None:
            snapshot = self.unlooked("this look failed in eyas itself; the state is that of the look before")
        self._last = snapshot
        return snapshot

    def unlooked(self, reason: str) -> Snapshot:
        """What is known without a new look."""
        now, state = self.clock.now(), self._last.state if self._last is not None else StateName.STARTING
        return Snapshot(
            at=now,
            elapsed_s=now - self.journal.began_at,
            engine=self.engine,
            version=self.version,
            state=StateName.UNHEALTHY if state.is_final else state,
            reason=reason,
            warnings=tuple(self.journal.warnings.values()),
        )

    def _step(self) -> Snapshot:
        contained, now = self._contained, self.clock.now()
        seen = contained.run("looking", lambda: self.probes.observe(now), Observation(at=now))
        contained.run("reading the log's lines", lambda: self._take_lines(seen), None)
        contained.run(
            "comparing two looks",
            lambda: self._rules.note_moves(moved_between(self._seen, seen), seen.at),
            None,
        )
        self._seen = seen
        contained.run("reading the counters", lambda: self._acceptance.feed(seen.counters), None)
        has_evidence = contained.run("reading tracebacks", lambda: self._has_evidence(seen), False)
        found = self._rules.decide(seen, has_crash_evidence=has_evidence)
        contained.run("noting the phase", lambda: self._note_http(found, seen), None)
        # A stall whose stacks cannot be read is still a stall.
        found = contained.run("taking stacks", lambda: self._confirmed(found, seen), found)
        snapshot = self._snapshot(found, seen)
        contained.run("telling the state", lambda: self._announce(snapshot), None)
        return snapshot

    def run(
        self,
        *,
        until: Collection[StateName],
        on_snapshot: Callable[[Snapshot], None] | None = None,
        on_event: Callable[[Event], None] | None = None,
        deadline_s: float | None = None,
        stop_when: Callable[[], bool] = lambda: False,
        poll_s: float = 1.0,
    ) -> Snapshot:
        """Step until one of `until`, a final state, the log's end, the deadline, or `stop_when`; the last snapshot."""
        if on_event is not None:
            self.journal.listeners.append(on_event)
        end = None if deadline_s is None else self.clock.now() + deadline_s
        try:
            while True:
                snapshot = self.step()
                if on_snapshot is not None:
                    self._contained.run("showing the state", partial(on_snapshot, snapshot), None)
                is_late = end is not None and self.clock.now() >= end
                is_done = snapshot.state in until or snapshot.state.is_final or self.log_is_over
                if is_done or is_late or stop_when():
                    return snapshot
                self._sleep(poll_s, stop_when)
        finally:
            if on_event is not None:
                self.journal.listeners.remove(on_event)

    def _sleep(self, seconds: float, stop_when: Callable[[], bool]) -> None:
        """Sleep until the next look; a long pause stops early when the watch must end."""
        end = self.clock.now() + seconds
        while (left := end - self.clock.now()) > 0 and not stop_when():
            self.clock.sleep(min(left, _NAP_S))

    def prove(self, proof: Proof) -> None:
        """Tell the state machine what the first-minute verdict found: ready becomes proven if `proof.ok`."""
        self._proof = proof
        data = {"ok": proof.ok, "rounds": proof.rounds, "accept_length": proof.accept_length}
        self.journal.tell("proof", proof.text, data, at=self.clock.now())

    def note_stop_asked(self) -> None:
        """Call this before stopping the server: its end is then not a crash."""
        self._rules.stop_asked = True
        self.journal.tell("stop", "asked to stop", {}, at=self.clock.now())

    @property
    def facts(self) -> Mapping[str, str]:
        """What the log told on its way: version, url, aux_layers, model_class, kv_tokens, ..."""
        return self._tracker.facts

    @property
    def log_is_over(self) -> bool:
        """Only a log is known and no process writes it: nothing more will be seen."""
        return self._seen is not None and self._seen.log_life != "written"

    @property
    def was_ready(self) -> bool:
        """It is, or its log tells that it once was."""
        return self._tracker.ready_at is not None

    @property
    def last(self) -> Snapshot | None:
        """The newest snapshot."""
        return self._last

    def phase_rows(self) -> tuple[PhaseRow, ...]:
        """The start-up so far for a live view: title, seconds, progress."""
        return phase_rows(self._tracker, self._times, self._told_at(self.clock.now()))

    def began_before(self, at: float) -> None:
        """The process began at unix time `at`, before its first line (launch.json says so); ignored if impossible."""
        if 0 < self.journal.began_at - at < _LONGEST_SILENT_LAUNCH_S:
            self.journal.began_at = self._tracker.runs[0].began_at = at

    def timeline_document(self) -> dict[str, Any]:
        """The timeline so far (schema eyas.timeline/1)."""
        return self.journal.timeline.as_document(self._tracker.runs, self._last)

    # ------------------------------------------------------------------ evidence

    def _take_lines(self, seen: Observation) -> None:
        if seen.lines and seen.lines[0].at < self.journal.began_at:
            # An old log: the start was before we came.
            at = seen.lines[0].at
            self.journal.began_at = self._tracker.runs[0].began_at = at
            if self.log_only:
                self._rules.strong_at = at
        if self.engine == "unknown":
            self._find_engine(seen)
        for line in seen.lines:
            self._contained.run("reading a line of the log", partial(self._take_line, line), None)
        if self.log_only and self._seen is None and seen.log_written_at is not None:
            # Lines without a stamp, and stamps of another zone, are younger than they seem.
            self._rules.note_moves({"log": "something was written"}, seen.log_written_at)
        words = self._rules.last_words(seen, self._has_evidence(seen))
        self._is_past = self.log_only and words.are_past(seen)
        self._is_unknown = self.log_only and words.is_unknown
        at = self._told_at(seen.at)
        moved = self._tracker.feed_pending(seen.pending_bar, at)
        self._rules.note_moves(dict.fromkeys(moved, "progress bar"), at)
        if told := self._progress.due(self._tracker, at):
            self.journal.tell("progress", *told, at=at)
        for note in seen.missing:
            self.journal.warn(note, at=at)

    def _told_at(self, now: float) -> float:
        """Now; for a log that is over, the time of its last line, since its events happened then."""
        last_line_at = self._rules.last_line_at
        if not self._is_past or last_line_at is None:
            return now
        return last_line_at if self._last is None else max(last_line_at, self._last.at)  # time never goes back

    def _find_engine(self, seen: Observation) -> None:
        """Find out the engine from its first log lines, and parse those lines again with its own table."""
        early = self._early
        self._early = [*early, *seen.lines][:_EARLY_LINES]
        said = next((name for line in seen.lines if (name := engine_of_line(line.message)) is not None), None)
        engine = said or (seen.identity.engine if seen.identity is not None else "unknown")
        if engine not in ENGINES:
            return
        self.engine = engine
        self.version = self.version or (seen.identity.version if seen.identity is not None else None)
        began_at = self._tracker.runs[0].began_at
        table = table_for(self.engine, self.version)
        self._tracker = PhaseTracker(table, began_at, self._tracker.first_phase)
        self._crash = CrashReader(table)
        self._rules.engine, self._rules.tracker = self.engine, self._tracker
        self.probes.learn(self.engine, self.version)
        self.journal.tell(
            "note", f"the engine is {self.engine}", {"engine": self.engine}, at=seen.lines[0].at if said else seen.at
        )
        for line in early:
            self._contained.run("reading a line of the log", partial(self._take_line, line), None)

    def _take_line(self, line: LogLine) -> None:
        before = self._tracker.milestones
        meaning = self._tracker.feed(line)
        if meaning.restarted:
            self._crash = CrashReader(self._tracker.table)
            self._rules.forget_processes()
            self.journal.tell("note", "a new start begins in the same log", {"line": line.number}, at=line.at)
        self._crash.feed(line)
        self._last_line = line.raw[:400]
        self._rules.note_moves(dict.fromkeys(meaning.moved, line.message[:120] or "a line"), line.at)
        if meaning.began is not None:
            data = {"phase": meaning.began.key, "line": line.number}
            self.journal.tell("phase", self._tracker.title_of(meaning.began), data, at=line.at)
        if meaning.says:
            self.journal.warn(meaning.says, at=line.at)
        if self.log_only and not meaning.restarted:
            # A whole log is read in one look: what lay between its beginning and its end is told as it went by.
            for words, at in self._tracker.milestones.items():
                if words not in before:
                    self.journal.tell("note", words, {"line": line.number}, at=at)
        self._rules.last_line_at = line.at

    def _note_http(self, found: Assessment, seen: Observation) -> None:
        """An endpoint can show a phase that no log told."""
        if found.state is StateName.WARMING_UP or found.state.is_serving:
            began = self._tracker.saw_http(ready=found.state.is_serving, at=seen.at)
            if began is not None:
                self.journal.tell("phase", self._tracker.title_of(began), {"phase": began.key}, at=seen.at)
        for warning in found.warnings:
            self.journal.warn(warning, at=self._told_at(seen.at))

    def _confirmed(self, found: Assessment, seen: Observation) -> Assessment:
        """A suspected stall becomes one when two samples of stacks agree, or when no stacks can be had."""
        if not found.suspects_stall:
            if self._stall.calm():
                self.journal.tell("note", "it moves again", {}, at=seen.at)
            return found
        run = self._tracker.current
        context = StallContext(
            phase=run.id,
            phase_title=self._tracker.title_of(run),
            role=run.role,
            engine=self.engine,
            version=self.version,
            unmoved=self._rules.unmoved(seen.at),
        )
        outcome = self._stall.suspect(seen.processes or (), context, seen.at)
        if self._stall.note:
            self.journal.tell("stacks", self._stall.note, {}, at=seen.at)
        if outcome == "stalled":
            return found
        state = self._last.state if self._last is not None else StateName.STARTING
        if outcome == "moving":
            self._rules.note_moves({"progress": "the stacks of a rank change"}, seen.at)
            return replace(found, state=state, reason="slow, not hung: the stacks change")
        apart_s = f"{self.patience.second_sample_s:.0f}"
        return replace(found, state=state, reason=f"{found.reason}; taking stacks twice, {apart_s} s apart")

    def _snapshot(self, found: Assessment, seen: Observation) -> Snapshot:
        state, reason = found.state, found.reason
        proof = self._proof or self._acceptance.proof()
        if state is StateName.READY and proof is not None and proof.ok:
            state, reason = StateName.PROVEN, f"{reason}; {proof.text}"
        elif state is StateName.READY and proof is not None:
            self.journal.warn(proof.text, at=seen.at, key=_NO_PROOF)  # its figures change at every look
        logged = logged_proof(self._tracker.logged) if self._proof is None else None
        if proof is not None and proof.ok:
            self.journal.withdraw(_NO_PROOF)
        elif proof is None and logged is not None and not logged.ok:
            self.journal.warn(logged.text, at=self._rules.last_line_at or seen.at, key=_NO_PROOF)
        stall = self._stall.stall if state is StateName.STALLED else None
        at, is_starting = self._told_at(seen.at), state in (StateName.STARTING, StateName.WARMING_UP)
        return Snapshot(
            at=at,
            elapsed_s=at - self.journal.began_at,
            engine=self.engine,
            version=self.version or self._tracker.facts.get("version"),
            state=state,
            reason=stall.what + "; " + reason if stall is not None else reason,
            phase=None if state.is_final or state.is_serving or self._is_unknown else self._phase_view(seen.at),
            ready_eta_s=self._times.ready_eta_s(self._tracker.current, at) if is_starting else None,
            cause=self._cause(seen) if state is StateName.CRASHED or self._has_told_cause() else None,
            stall=stall,
            proof=proof or logged,
            accept_lengths=seen.counters.rank_lengths if seen.counters else {},
            ranks=tuple(map(rank_view, seen.processes or ())),
            gpus=gpu_views(seen.gpus or ()),
            endpoints={path: str(answer) for path, answer in seen.endpoints.items()},
            warnings=tuple(dict.fromkeys([*self.journal.warnings.values(), *self._acceptance.warnings])),
            last_line=self._last_line,
        )

    def _has_evidence(self, seen: Observation) -> bool:
        """Of a crash; where nothing writes the log any more, a parent's report of a child's death is enough."""
        return self._crash.has_evidence or (seen.log_life in ("over", "closed") and self._crash.echoes_a_death)

    def _has_told_cause(self) -> bool:
        """Whether the cause of the coming end is known while the server still runs."""
        return self._tracker.core_died and self._crash.has_evidence

    def _cause(self, seen: Observation) -> Cause:
        title = self._tracker.title_of(self._tracker.current)
        phase = f"after {title.removesuffix(DONE)}" if title.endswith(DONE) else f"while {title}"
        cause = self._crash.cause(
            seen.exit, phase=phase, self_killed=self._tracker.self_killed, core_died=self._tracker.core_died
        )
        if cause.diagnostic.code == _RANK_NOT_LOADED:
            loaded, others = self._tracker.ranks_at("weights")
            missing = ", ".join(others) or "ranks without a line"
            told = f"did not finish, by this log: {missing}; finished: {', '.join(loaded)}"
            why = f"{cause.diagnostic.why}; {told}" if loaded else cause.diagnostic.why
            return replace(cause, diagnostic=replace(cause.diagnostic, why=why))
        return cause

    def _phase_view(self, now: float) -> PhaseView:
        return phase_view(self._tracker, self._rules, self._times, at=self._told_at(now), now=now)

    def _announce(self, snapshot: Snapshot) -> None:
        before = self._last.state if self._last is not None else None
        changed = before is not snapshot.state
        self.journal.state = snapshot.state
        if changed:
            self.journal.tell("state", snapshot.reason, {"from": before}, at=snapshot.at)
        if changed and snapshot.state.is_serving:
            self._times.keep(self._tracker.runs)
        if changed or snapshot.state.is_final:
            self.journal.write_snapshot(snapshot, self.journal.timeline.as_document(self._tracker.runs, snapshot))
