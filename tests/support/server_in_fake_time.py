"""A server under the real supervisor and loop in fake time, with an engine that lives until the test says otherwise."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from eyas.serve.facts.evidence import CounterFacts
from eyas.serve.facts.run_folder import RunFolder
from eyas.serve.launch.launch_outcome import LaunchSettings
from eyas.serve.launch.running_server import RunningServer
from eyas.serve.launch.stop import Interrupts
from eyas.serve.supervise.phase_times import PhaseMemory, StartKey
from eyas.serve.supervise.supervisor import Supervisor
from eyas.serve.supervise.views import PlainView
from eyas.serve.verdict.canary_run import CanaryOptions
from fake_world import FakeClock, World, sglang
from scenario_worlds import ROLL, UP


class FakeEngine:
    """An engine's process that lives until the test says otherwise."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.is_gone = False

    def poll(self) -> int | None:
        return self.code


def counters(second: float) -> CounterFacts:
    rounds = second * 50
    return CounterFacts(
        generation_tokens=rounds * 2, running=1, rounds=rounds, accepted_at=(rounds * 0.6, rounds * 0.4), mark=(rounds,)
    )


def ready_world() -> World:
    world = World()
    world.process(0, 100, "python -m sglang.launch_server", cpu=0.02)
    world.process(0, 200, "sglang::scheduler_TP0", parent=100, cpu=0.5)
    world.at(0, port="open", health=503)
    world.log(
        1, sglang(1, UP) + sglang(2, "Capture draft decode CUDA graph begin.") + "Capturing batches:  4%|x| 2/51 ["
    )
    world.log(3, sglang(3, ROLL))
    world.at(3, health=200, counters=counters)
    return world


def running(
    world: World, folder: RunFolder, *, looks: int, view: Any = None, at_look: Callable[[int], None] | None = None
) -> tuple[RunningServer, FakeEngine]:
    """A server under the real supervisor and loop, in fake time; the user interrupts after `looks` looks."""
    interrupts = Interrupts()
    clock = FakeClock()

    class Steps(FakeClock):
        count = 0

        def sleep(self, seconds: float) -> None:
            clock.sleep(seconds)
            self.count += 1
            if at_look is not None:
                at_look(self.count)
            interrupts.count = int(self.count >= looks)

        def now(self) -> float:
            return clock.now()

    steps, engine = Steps(), FakeEngine()
    supervisor = Supervisor(
        engine="sglang",
        version="0.5.15.post1",
        probes=world,
        clock=clock,
        stacks=world,
        folder=folder,
        memory=PhaseMemory(folder.path / "memory"),
        key=StartKey(engine="sglang"),
    )
    options = SimpleNamespace(data_parallel=1, served_name="m")
    plan = SimpleNamespace(command=SimpleNamespace(url="http://127.0.0.1:1"), request=SimpleNamespace(options=options))
    settings = LaunchSettings(runs=folder.path, cache=folder.path, canary=CanaryOptions(max_seconds=1))
    server = RunningServer(
        plan,  # type: ignore[arg-type]
        settings,
        view or PlainView(lambda _: None),
        interrupts,
        steps,
        folder,
        engine,  # type: ignore[arg-type]
        supervisor,
        None,
    )
    return server, engine
