"""TensorRT-LLM's life over fake seconds: its port opens when it is ready, and /health never says "warming up"."""

from eyas.serve.facts.evidence import ExitFacts
from eyas.serve.facts.state import StateName
from fake_world import World, drive

ENGINE = ("tensorrt-llm", "1.3.0rc27")
LINES = (
    "Using LLM with PyTorch backend",
    "rank 0 using MpiPoolSession to spawn MPI processes",
    "Use 16.20 GB for model weights.",
    "Model init total -- 9.10s",
    "Creating CUDA graph instances for 11 batch sizes.",
    "Setting PyTorch memory fraction to 0.8",
)


def _line(second: float, message: str) -> str:
    return f"[03/10/2026-12:{int(second) // 60:02}:{int(second) % 60:02}] [TRT-LLM] [I] {message}\n"


def _world() -> tuple[World, float]:
    world = World()
    world.process(0, 100, "python -m tensorrt_llm.commands.serve", cpu=0.2)
    world.process(3, 200, "python -m mpi4py.futures.server", parent=100, cpu=0.5)
    world.at(0, port="refused", health="refused")
    for number, message in enumerate(LINES):
        world.log(5.0 * number + 1, _line(5 * number + 1, message))
    end = 5.0 * len(LINES) + 1
    world.log(end, "INFO:     Application startup complete.\n")
    world.at(end, port="open", health=200)
    return world, end


def test_it_starts_and_is_ready():
    world, end = _world()

    run = drive(world, *ENGINE, until=end + 10)

    assert run.last.state is StateName.READY


def test_503_is_a_dead_executor_and_not_a_warm_up():
    world, end = _world()
    world.at(end + 20, health=503)

    run = drive(world, *ENGINE, until=end + 40)

    assert run.last.state is StateName.UNHEALTHY
    assert "its executor is gone" in run.last.reason


def test_a_tidy_end_is_stopped_and_a_worker_that_fails_is_a_crash():
    world, end = _world()
    world.log(end + 10, "INFO:     Shutting down\nINFO:     Application shutdown complete.\n")
    world.at(end + 12, exit=0)
    assert drive(world, *ENGINE, until=end + 20).last.state is StateName.STOPPED

    world, end = _world()
    world.log(end + 10, _line(end + 10, "Error in event loop: CUDA error: an illegal memory access was encountered"))
    world.at(end + 12, exit=ExitFacts(code=1))
    assert drive(world, *ENGINE, until=end + 20).last.state is StateName.CRASHED
