"""The state machine over evidence: one `step` = observe, judge, remember; `run` repeats it until a wanted state.

INTERFACE (for `eyas serve`; the bodies follow):

    folder  = RunFolder.create(runs, engine="sglang")
    process = start_process(command, env, folder)                  # serve.engine_process
    probes  = live_probes(Subject.of_process(process, url=url), engine=..., api_key=...)   # serve.probes
    watcher = Supervisor(engine="sglang", version="0.5.15.post1", probes=probes, clock=SystemClock(), ...)
    snapshot = watcher.run(until={StateName.READY}, on_snapshot=view.show, on_event=...)
    watcher.prove(Proof(ok=..., text=...))                         # first-minute verdict: ready -> proven
    outcome = stop(process, deadline_s=90, ...)                    # serve.stop
"""

from collections.abc import Callable, Collection

from eyas.serve.state import Engine, Event, Proof, Snapshot, StateName


class Supervisor:
    """Judges one server. Nothing here sends a signal, starts a process or prints."""

    def __init__(self, *, engine: Engine, version: str | None) -> None:
        self.engine, self.version = engine, version

    def step(self) -> Snapshot:
        """Observe once and say what the server is doing now."""
        raise NotImplementedError

    def run(
        self,
        *,
        until: Collection[StateName],
        on_snapshot: Callable[[Snapshot], None] | None = None,
        on_event: Callable[[Event], None] | None = None,
        deadline_s: float | None = None,
    ) -> Snapshot:
        """Step until one of `until`, a final state, or the deadline; the last snapshot."""
        raise NotImplementedError

    def prove(self, proof: Proof) -> None:
        """Tell the state machine what the first-minute verdict found: ready becomes proven if `proof.ok`."""
        raise NotImplementedError
