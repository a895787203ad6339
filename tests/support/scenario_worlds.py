"""The worlds that scenarios begin with: a server of SGLang or vLLM up to some point of its start."""

from collections.abc import Callable

from eyas.serve.facts.evidence import CounterFacts
from fake_world import World, gpu, sglang

SGLANG, VLLM, VLLM_CPU = ("sglang", "0.5.15.post1"), ("vllm", "0.25.1"), ("vllm", "0.32.0")
EAGLE3 = "sglang-0.5.15.post1-eagle3.log"
CAPTURE = {
    "TP0": (
        "synchronize (torch/cuda/__init__.py:1083)",
        "capture_one_batch_size (sglang/srt/speculative/eagle_draft_cuda_graph_runner.py:297)",
        "_capture_cuda_graphs (sglang/srt/speculative/eagle_worker_v2.py:462)",
    )
}
UP = "INFO:     Application startup complete."
ROLL = "The server is fired up and ready to roll!"


def sglang_world(*, ranks: int = 1, cpu: float = 0.5) -> World:
    world = World()
    world.process(0, 100, "python -m sglang.launch_server", cpu=0.02)
    for rank in range(ranks):
        world.process(3, 200 + rank, f"sglang::scheduler_TP{rank}", parent=100, cpu=cpu)
    world.process(3, 300, "sglang::detokenizer", parent=100, cpu=0.01)
    world.at(0, port="refused", health="refused", gpus=gpu(0.5))
    return world


def vllm_world(cpu: float = 0.5) -> World:
    world = World()
    world.process(0, 100, "VLLM::APIServer", cpu=0.02)
    world.process(3, 200, "VLLM::EngineCore", parent=100, cpu=cpu)
    world.at(0, port="refused", health="refused")
    return world


def started(world: World) -> float:
    """Replay SGLang's start up to an open port; the second at which HTTP is up."""
    end = world.replay(EAGLE3, until=b"Prefill batch")
    world.log(end + 1, sglang(end + 1, UP))
    world.at(end + 1, port="open", health=503)
    return end + 1


def ready(world: World) -> float:
    up = started(world)
    world.log(up + 5, sglang(up + 5, ROLL))
    world.at(up + 5, health=200)
    return up + 5


def counted(
    rate: float, accepted: tuple[float, ...], running: float = 1, since: float = 0.0
) -> Callable[[float], CounterFacts]:
    """Counters of a server that makes `rate` rounds a second and accepts the given shares."""

    def at(second: float) -> CounterFacts:
        rounds = max(second - since, 0) * rate
        at_positions = tuple(rounds * share for share in accepted)
        tokens = rounds + sum(at_positions)
        return CounterFacts(
            generation_tokens=tokens, running=running, rounds=rounds, accepted_at=at_positions, mark=(tokens,)
        )

    return at
