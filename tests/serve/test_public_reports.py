"""Logs of public reports: what `eyas watch` must say of each, and of others of its kind."""

from collections.abc import Callable
from pathlib import Path

import pytest

from eyas.serve.compare import flags_of
from eyas.serve.facts.state import Snapshot, StateName
from eyas.serve.supervise.supervisor import Supervisor
from eyas.serve.supervise.views import final_text, textfile_of
from fake_world import LOGS, FakeClock, World, drive, sglang, vllm
from log_once import Once
from scenario_worlds import SGLANG

Report = Callable[[str], Snapshot]


def look(data: bytes) -> Snapshot:
    probes = Once(data)
    return Supervisor(engine="unknown", version=None, probes=probes, clock=FakeClock(), log_only=True).step()


@pytest.fixture
def report(shared: Path) -> Report:
    """The last snapshot of `eyas watch` on a file of ../shared/cases/reports."""

    def of(name: str) -> Snapshot:
        return look((shared / "cases" / "reports" / name).read_bytes())

    return of


# ---------------------------------------------------------------------- why it died


def test_ranks_that_did_not_finish_loading_are_named(report: Report):
    cause = report("21-sglang-rank-not-loaded/server.log").cause

    assert cause is not None
    assert cause.diagnostic.code == "rank-not-loaded"
    assert "rank 0" in cause.diagnostic.what
    assert "did not finish, by this log: TP0; finished: TP1, TP2, TP3" in cause.diagnostic.why
    assert "disk" in cause.diagnostic.advice


def test_a_target_that_was_loaded_as_draft_is_said(report: Report):
    cause = report("22-sglang-no-draft-path/server.log").cause

    assert cause is not None
    assert (cause.diagnostic.code, "Qwen2ForCausalLM" in cause.diagnostic.what) == ("draft-not-given", True)
    assert "--speculative-draft-model-path" in cause.diagnostic.advice


def test_the_sentence_that_says_why_is_shown_though_it_is_not_the_first(report: Report):
    snapshot = report("24-vllm-draft-expert-parallel/server.log")

    assert snapshot.cause is not None
    assert snapshot.cause.diagnostic.code == "draft-expert-parallel"
    assert "no experts" in final_text(snapshot)


def test_a_target_without_the_interface_is_said(report: Report):
    cause = report("25-vllm-no-eagle3-interface/server.log").cause

    assert cause is not None
    assert cause.diagnostic.code == "target-not-tappable"
    assert "eyas check" in cause.diagnostic.advice


START = "Traceback (most recent call last):"
UNKNOWN = (
    ("ValidationError: 1 validation error for ModelConfig", "  Value error, Only llama is here. [type=value_error]"),
    ("RuntimeError: Error(s) in loading state_dict for Draft:", "\tsize mismatch for fc.weight: copying [1, 2]"),
    ("ValueError: Cannot find anything", "because the folder holds no weights"),
    ("ExceptionGroup: errors in two tasks (2 sub-exceptions)", "  the first one was a timeout"),
)


@pytest.mark.parametrize(("first", "second"), UNKNOWN)
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_an_unknown_exception_is_told_with_its_further_lines(first: str, second: str, engine: str):
    if engine == "vllm":
        rows = [
            "EngineCore failed to start.",
            "Traceback (most recent call last):",
            '  File "x.py", line 1',
            first,
            second,
        ]
        log = vllm(0, "non-default args: {}") + "".join(vllm(1, row, "EngineCore", 2, "ERROR") for row in rows)
    else:
        log = sglang(0, "server_args=ServerArgs(x)") + sglang(
            1, "Scheduler hit an exception: Traceback (most recent call last):"
        )
        log += f'  File "x.py", line 1\n{first}\n{second}\n\n' + sglang(2, "Received sigquit from a child process.")

    cause = look(log.encode()).cause

    assert cause is not None
    assert second.strip() in cause.diagnostic.what


SHAPES = (
    "mat1 and mat2 shapes cannot be multiplied (8x7680 and 12288x4096)",
    "The size of tensor a (4096) must match the size of tensor b (2048) at non-singleton dimension 1",
    "Sizes of tensors must match except in dimension 1. Expected size 1 but got size 3",
)
DTYPES = (
    "expected m1 and m2 to have the same dtype, but got: c10::BFloat16 != c10::Half",
    "expected mat1 and mat2 to have the same dtype, but got: float != c10::BFloat16",
    "expected scalar type BFloat16 but found Half",
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        *((e, "draft-shape-mismatch") for e in SHAPES),
        *((e, "draft-dtype-mismatch") for e in DTYPES),
        ("CUDA error: operation not permitted when stream is capturing", "graph-capture-failed"),
    ],
)
def test_a_fault_of_the_draft_is_not_taken_for_one_of_the_capture(error: str, code: str):
    log = (LOGS / "known" / "graph-capture-failed.log").read_text()
    cause = look(log.replace("CUDA error: operation not permitted when stream is capturing", error).encode()).cause

    assert cause is not None
    assert cause.diagnostic.code == code
    assert ("eyas check" in cause.diagnostic.advice) == (code != "graph-capture-failed")


@pytest.mark.parametrize(
    "text",
    [
        "Tried to load weights of size torch.Size([151936, 4096]) to a parameter of size torch.Size([32000, 4096])",
        "Attempted to load weight (torch.Size([4096, 7680])) into parameter (torch.Size([4096, 12288]))",
        "Tried to load weights of size torch.Size([1])to a parameter of size torch.Size([2])",
    ],
)
def test_vllms_words_for_a_size_that_does_not_fit_are_known(text: str):
    log = (LOGS / "known" / "draft-size-mismatch.log").read_text()
    old = next(line for line in log.splitlines() if "Tried to load" in line).partition("] ")[2]
    cause = look(log.replace(old, f"AssertionError: {text}").encode()).cause

    assert cause is not None
    assert cause.diagnostic.code == "draft-size-mismatch"


# ---------------------------------------------------------------------- between dead and healthy


def test_the_acceptance_of_a_good_draft_is_told_from_its_log(report: Report):
    good = report("26-sglang-accept-rate-old/server-good.log")

    assert good.proof is not None
    assert good.proof.accept_length is not None
    assert good.proof.accept_length > 1.5
    assert "speculation: accept length" in final_text(good)
    assert "eyas_watch_accept_length" in textfile_of(good)
    assert good.warnings == ()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("26-sglang-accept-rate-old/server.log", "nothing is accepted"),
        ("27-vllm-metrics/server.log", "nothing is accepted"),
        ("27-vllm-metrics/server-v090.log", "only 11% of first drafts are accepted"),
        ("28-prefixed-logs/compose-vllm-low-accept.log", "accepted"),
    ],
)
def test_a_draft_of_which_nothing_or_nearly_nothing_is_accepted_is_warned_of(report: Report, name: str, words: str):
    snapshot = report(name)

    assert snapshot.proof is not None
    assert not snapshot.proof.ok
    assert any(words in warning for warning in snapshot.warnings)


METRICS = (
    "SpecDecoding metrics: Mean acceptance length: {}, Accepted: 1 tokens, Drafted: {} tokens, "
    "Per-position acceptance rate: {}"
)


@pytest.mark.parametrize(
    ("length", "drafted", "rates", "ok"),
    [
        ("1.00", 126471, "0.000, 0.000, 0.000", False),  # one line is enough
        ("1.12", 2560, "0.110, 0.010, 0.000", False),
        ("1.14", 3000, "0.149, 0.000, 0.000", False),
        ("1.20", 3000, "0.160, 0.040, 0.000", True),
        ("1.00", 30, "0.000, 0.000, 0.000", True),  # ten rounds
        ("2.61", 3000, "0.720, 0.520, 0.370", True),
        ("nan", 0, "", None),
    ],
)
def test_one_line_over_enough_rounds_is_judged_as_serve_judges(length: str, drafted: int, rates: str, ok: bool | None):
    log = vllm(0, "non-default args: {}") + vllm(1, "Application startup complete.")
    proof = look((log + vllm(9, METRICS.format(length, drafted, rates))).encode()).proof

    assert (proof and proof.ok) is ok


@pytest.mark.parametrize(("running", "length", "ok"), [(5, "1.02", False), (1, "1.02", True), (8, "2.4", True)])
def test_sglangs_lines_count_forty_rounds_a_request(running: int, length: str, ok: bool):
    line = f"Decode batch. #running-req: {running}, #token: 9, accept len: {length}, gen throughput (token/s): 9.0"
    log = (
        sglang(0, "server_args=ServerArgs(x)")
        + sglang(1, "The server is fired up and ready to roll!")
        + sglang(9, line)
    )
    proof = look(log.encode()).proof

    assert proof is not None
    assert proof.ok is ok


# ---------------------------------------------------------------------- where it stands


def test_a_log_that_ends_in_nccls_init_says_what_to_do_next(report: Report):
    snapshot = report("30-sglang-nccl-init-end/server.log")

    assert "connecting the ranks" in snapshot.reason
    assert "NCCL_DEBUG=INFO" in snapshot.reason


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("Load weight begin. avail mem=139.09 GB", "disk"),
        ("Capture draft decode CUDA graph begin.", "graphs off for the draft"),
        ("Running FlashInfer autotune", "autotuning off"),
    ],
)
def test_a_log_that_ends_in_any_phase_says_what_to_do_next(line: str, step: str):
    snapshot = look((sglang(0, "server_args=ServerArgs(x)") + sglang(1, line)).encode())

    assert step in snapshot.reason


def test_a_silent_phase_is_named_with_its_last_line_and_budget():
    world = World()
    world.log(0, sglang(0, "server_args=ServerArgs(x)") + sglang(1, "Init torch distributed begin."))
    text = final_text(drive(world, *SGLANG, until=300, log_only=True, with_stacks=False).last)

    assert "phase: connecting the ranks" in text
    assert "quiet for" in text
    assert "last line: " in text
    assert "Init torch distributed begin." in text


def test_a_port_that_accepts_and_never_answers_is_stalled_after_a_minute():
    world = World()
    world.at(0, port="open", health="timeout")
    run = drive(world, "unknown", None, until=120, with_stacks=False, has_log=False)

    assert run.names == ["starting", "stalled"]
    assert "accepts connections" in run.last.reason


def test_a_port_that_answers_late_is_not():
    world = World()
    world.at(0, port="open", health="timeout")
    world.at(40, health=503)
    world.at(80, health=200)

    assert "stalled" not in drive(world, "unknown", None, until=200, with_stacks=False, has_log=False).names


@pytest.mark.parametrize("title", ["sleep 1000", "/usr/sbin/nginx: worker", "node server.js", "postgres: writer"])
def test_a_process_of_something_else_is_no_engine(title: str):
    world = World()
    world.process(0, 100, title)

    assert drive(world, "unknown", None, until=5, has_log=False).last.state is StateName.NO_ENGINE


@pytest.mark.parametrize(
    "title", ["python -m sglang.launch_server", "python my_own.py", "/opt/vllm serve m", "bash run.sh"]
)
def test_a_process_that_may_become_an_engine_is_waited_for(title: str):
    world = World()
    world.process(0, 100, title)

    assert drive(world, "unknown", None, until=5, has_log=False).last.state is StateName.STARTING


def test_a_port_taken_over_by_a_web_server_is_not_ready_any_more():
    from eyas.serve.facts.evidence import Identity

    world = World()
    world.at(0, port="open", health=200)
    plain = world.observe
    engine, web = Identity(engine="vllm", version="0.32.0"), Identity(is_foreign=True)

    def observe(now: float):
        from dataclasses import replace

        seen = plain(now)
        return replace(seen, identity=engine if now - START < 60 else web)

    clock = FakeClock()
    START = clock.now()
    world.observe = observe  # type: ignore[method-assign]
    run = drive(world, "unknown", None, until=90, with_stacks=False, has_log=False)

    assert run.names == ["ready", "no-engine"]


# ---------------------------------------------------------------------- two runs


@pytest.mark.parametrize(
    ("a", "b", "change"),
    [
        (
            '{"num_speculative_tokens": 3}',
            '{"num_speculative_tokens": 5}',
            "--speculative-config.num_speculative_tokens: 3 -> 5",
        ),
        ('{"a": {"b": 1}}', '{"a": {"b": 2}}', "--speculative-config.a.b: 1 -> 2"),
        ('{"a": 1}', '{"a": 1, "c": [1, 2]}', "--speculative-config.c [1, 2] only in B"),
        ("not json", "nor this", "--speculative-config: 'not json' -> 'nor this'"),
    ],
)
def test_what_was_changed_inside_a_json_value_is_named(a: str, b: str, change: str):
    from eyas.serve.compare import _mapping_changes

    command = ("vllm", "serve", "--speculative-config")

    assert _mapping_changes(flags_of((*command, a)), flags_of((*command, b))) == [change]
