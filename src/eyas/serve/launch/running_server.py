"""One started server while it runs: looked at again and again, asked for its verdict once, shown all the time."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from eyas.client.address import ServerAddress, await_answer, open_http
from eyas.contract.engines.registry import server_api
from eyas.serve.facts.clock import Clock
from eyas.serve.facts.containment import Containment
from eyas.serve.facts.run_folder import RunFolder
from eyas.serve.facts.state import Event, EventKind, Snapshot, StateName
from eyas.serve.launch.launch_outcome import LaunchSettings
from eyas.serve.launch.launch_plan import LaunchPlan
from eyas.serve.launch.stop import Interrupts
from eyas.serve.look.engine_process import DRAIN_DEADLINE_S, EngineProcess
from eyas.serve.supervise.supervisor import Supervisor
from eyas.serve.supervise.views import View, final_text
from eyas.serve.verdict.canary_run import CanaryOptions
from eyas.serve.verdict.parity_step import ParityFound, ParityStep, source_of
from eyas.serve.verdict.verdict import Verdict, first_minute
from eyas.serve.verdict.verdict_findings import VerdictContext

PORT_LAG_S = 15.0
_SAY_EVERY_S = 5.0
_COMPARING_S = 200.0  # beside the canaries: settling counters, losslessness, one answer that began just in time


@dataclass(slots=True)
class RunningServer:
    """One started server, while it runs."""

    plan: LaunchPlan
    settings: LaunchSettings
    view: View
    interrupts: Interrupts
    clock: Clock
    folder: RunFolder
    process: EngineProcess
    supervisor: Supervisor
    api_key: str | None
    ready_s: float | None = None
    verdict: Verdict | None = None
    _asked: "Future[Verdict] | None" = None
    _asked_at: float = 0.0
    _is_given_up: bool = False
    _said_at_s: float = -1.0
    _parity: ParityStep | None = None
    _contained: Containment = field(init=False)

    def __post_init__(self) -> None:
        self._contained = Containment(lambda text: self.supervisor.journal.warn(text, at=self.clock.now()))

    def until_end(self) -> Snapshot:
        """Look, show and judge until the server has ended, the user interrupts, or nothing is left to wait for.

        Whatever fails here is told and left out; only these three end it.
        """
        try:
            return self._until_end()
        finally:
            if self._parity is not None:
                self._contained.run("ending the replay", self._parity.stop, None)

    def until_ready(self) -> Snapshot:
        """Look and show until it serves, has ended, stalls, or the user interrupts."""
        while True:
            snapshot = self._look()
            if self._has_ended(snapshot):
                return self._last_look(snapshot)
            if snapshot.state.is_serving or snapshot.state is StateName.STALLED or self.interrupts.asked():
                return snapshot
            self._contained.run("waiting", lambda: self.clock.sleep(self.settings.poll_s), None)

    def _until_end(self) -> Snapshot:
        stalled: Snapshot | None = None
        while True:
            snapshot = self._look()
            if snapshot.state.is_serving and self.ready_s is None:
                self.ready_s = snapshot.elapsed_s
            if snapshot.state is not StateName.STALLED:
                stalled = None
            elif stalled is None:
                stalled = snapshot
                self._say("note", final_text(snapshot), snapshot)
            self._contained.run("asking for the verdict", partial(self._advance_verdict, snapshot), None)
            if self._has_ended(snapshot):
                return self._last_look(snapshot)
            if self.interrupts.asked():
                return snapshot
            if self.settings.stop_after_verdict and self._is_settled(snapshot):
                return self._look()
            self._contained.run("waiting", lambda: self.clock.sleep(self.settings.poll_s), None)

    def _has_ended(self, snapshot: Snapshot) -> bool:
        """The engine's own end as its guard reports it, not as a log or an answer says."""
        code = self._contained.run("asking whether it has ended", self.process.poll, None)
        return code is not None and (snapshot.state.is_final or self.process.is_gone)

    def _last_look(self, before: Snapshot) -> Snapshot:
        """After the end: it may have come between the look and the question."""
        return before if before.state.is_final else self._look()

    def _look(self) -> Snapshot:
        # One step: the deadline has passed already.
        return self.supervisor.run(
            until=(),
            on_snapshot=lambda s: self.view.show(s, self.supervisor.phase_rows()),
            on_event=self.view.event,
            deadline_s=0.0,
        )

    def _say(self, kind: EventKind, text: str, snapshot: Snapshot) -> None:
        at, elapsed = snapshot.at, snapshot.elapsed_s
        event = Event(at=at, elapsed_s=elapsed, kind=kind, state=snapshot.state, text=text)
        self._contained.run("showing what happened", lambda: self.view.event(event), None)

    def say_waiting(self, waited_s: float) -> None:
        """Report now and then while the engine ends: how long ago it was asked to, and what the user can do."""
        if waited_s - self._said_at_s >= _SAY_EVERY_S or self._said_at_s < 0:
            self._said_at_s = waited_s
            left = max(DRAIN_DEADLINE_S - waited_s, 0)
            text = f"the engine was asked to end and may drain for {left:.0f} s; Ctrl-C again ends it at once"
            self._say("stop", text, self.supervisor.last or self._look())

    def _is_settled(self, snapshot: Snapshot) -> bool:
        wants_verdict = self.settings.canary is not None and bool(self.plan.command.url)
        judged = self.verdict is not None or self._is_given_up if wants_verdict else snapshot.state.is_serving
        return judged or snapshot.state is StateName.STALLED

    def _advance_verdict(self, snapshot: Snapshot) -> None:
        canary = self.settings.canary
        if canary is None or self.verdict is not None or self._is_given_up or not self.plan.command.url:
            return
        if self._asked is None and snapshot.state.is_serving:
            self._asked, self._asked_at = _in_background(lambda: self._ask(canary)), self.clock.now()
        if self._asked is None:
            return
        longest = (canary.max_seconds + _COMPARING_S) * max(self.plan.request.options.data_parallel, 1)
        if self._asked.done():
            self._is_given_up = True  # unless it holds a verdict
            self.verdict = self._asked.result()
            self.supervisor.prove(self.verdict.proof)
            # The supervisor tells its listeners only while it looks, and only the first line.
            self._say("proof", self.verdict.words, snapshot)
            self.supervisor.journal.write("verdict.json", self.verdict.as_document)
        elif self.clock.now() - self._asked_at > longest:
            self._is_given_up = True
            text = f"no verdict within {longest:.0f} s: the answers do not end; raise --verdict-seconds to wait longer"
            self.supervisor.journal.warn(text, at=snapshot.at)
            self._say("warning", text, snapshot)

    def _ask(self, canary: CanaryOptions) -> Verdict:
        request = self.plan.request
        address = ServerAddress(
            url=self.plan.command.url,
            api=server_api(request.engine),
            version=self.plan.engine.version,
            model=request.options.served_name or request.target,
            api_key=self.api_key,
        )
        ranks = request.options.data_parallel
        context = VerdictContext(
            ledger=self.plan.ledger,
            next_command=self.plan.next_command,
            target_folder=request.target_folder,
            expected=self.settings.expected,
            ranks=tuple(range(ranks)) if ranks > 1 else (),
            forced=tuple(dict.fromkeys(f.code for f in self.plan.overruled)),
        )
        with open_http(address, timeout_s=self.settings.request_timeout_s) as http:
            # "Application startup complete." comes a moment before the port is listened on.
            await_answer(http, address, PORT_LAG_S)
            return first_minute(http, address, canary, context, replay=self._replay())

    def _replay(self) -> Callable[[float], ParityFound] | None:
        request = self.plan.request
        if not self.settings.parity or request.draft is None:
            return None
        source, refusal = source_of(
            self.settings.probe,
            request.target_folder,
            is_tree=request.options.topk > 1,
            is_quantised=request.options.quantization is not None,
        )
        if not source and not refusal:
            return None
        self._parity = ParityStep(
            url=self.plan.command.url,
            api_key=self.api_key,
            draft=request.draft,
            num_draft_tokens=request.options.num_draft_tokens,
            source=source,
            refusal=refusal,
            folder=self.folder.path,
        )
        return self._parity.run


def _in_background(work: "Callable[[], Verdict]") -> "Future[Verdict]":
    """Run in a daemon thread, so that an interrupt ends a verdict at once.

    An executor's thread would be joined when Python ends.
    """
    future: Future[Verdict] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="eyas-verdict").start()
    return future
