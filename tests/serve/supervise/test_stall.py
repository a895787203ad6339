"""From stacks to a place: constructed from frames that the engines have."""

from collections.abc import Sequence

import pytest

from eyas.serve.log.tables import experiments_for
from eyas.serve.look.stacks import RankStack, StackSample, parse_py_spy
from eyas.serve.supervise.stall import StallContext, asymmetry, classify, position_of, stacks_moved

CAPTURE_TARGET = (
    "synchronize (torch/cuda/__init__.py:1083)",
    "capture_one_batch_size (sglang/srt/model_executor/runner/decode_cuda_graph_runner.py:1401)",
    "capture (sglang/srt/model_executor/runner/decode_cuda_graph_runner.py:1350)",
    "init_cuda_graphs (sglang/srt/model_executor/model_runner.py:2690)",
)
CAPTURE_DRAFT = (
    "forward (sglang/srt/models/llama_eagle3.py:250)",
    "capture_one_batch_size (sglang/srt/speculative/eagle_draft_cuda_graph_runner.py:297)",
    "_capture_cuda_graphs (sglang/srt/speculative/eagle_worker_v2.py:462)",
)
ALL_REDUCE = (
    "all_reduce (torch/distributed/distributed_c10d.py:2900)",
    "all_reduce (sglang/srt/distributed/parallel_state.py:500)",
    "forward (sglang/srt/models/llama.py:300)",
)
NCCL_INIT = (
    "_new_process_group_helper (torch/distributed/distributed_c10d.py:2044)",
    "init_process_group (torch/distributed/distributed_c10d.py:1700)",
    "init_distributed_environment (vllm/distributed/parallel_state.py:1906)",
)
LOAD = (
    "safetensors_weights_iterator (vllm/model_executor/model_loader/weight_utils.py:900)",
    "load_weights (vllm/model_executor/model_loader/default_loader.py:498)",
    "load_model (vllm/v1/worker/gpu_model_runner.py:5010)",
)
JIT = ("wait (subprocess.py:1264)", "build_and_load (flashinfer/jit/core.py:250)", "capture_one_batch_size (x.py:1)")
TOKENIZER = ("_from_pretrained (transformers/tokenization_utils_base.py:2300)", "get_tokenizer (sglang/srt/hf.py:9)")

KINDS = ("graph-capture", "collective", "nccl-init", "weight-load", "jit", "autotune", "frozen")


def rank(label: str, frames: Sequence[str], status: str = "S", how: str = "py-spy") -> RankStack:
    threads = {"MainThread (idle)": tuple(frames)}
    return RankStack(label=label, pid=sum(label.encode()), status=status, how=how, threads=threads)


def sample(*ranks: RankStack, at: float = 0.0) -> StackSample:
    return StackSample(at=at, ranks=ranks)


def judge(*ranks: RankStack, phase: str = "graphs", engine: str = "sglang", version: str = "0.5.23", second=None):
    first = sample(*ranks)
    return classify(
        first,
        second if second is not None else sample(*ranks, at=10.0),
        StallContext(
            phase=phase, phase_title=phase, role=None, engine=engine, version=version, unmoved=("log: last 95 s ago",)
        ),
    )


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        (CAPTURE_TARGET, "graph-capture"),
        (CAPTURE_DRAFT, "graph-capture"),
        (ALL_REDUCE, "collective"),
        (NCCL_INIT, "nccl-init"),
        (LOAD, "weight-load"),
        (JIT, "jit"),
        (TOKENIZER, "tokenizer"),
    ],
)
def test_each_place_is_known_by_its_frames(frames: Sequence[str], kind: str):
    assert position_of(rank("TP0", frames)).kind == kind


def test_the_captured_model_is_named():
    assert "of the draft" in judge(rank("TP0", CAPTURE_DRAFT)).what
    assert "of the target" in judge(rank("TP0", CAPTURE_TARGET)).what


def test_a_stall_in_the_drafts_capture_proposes_the_drafts_graphs_first():
    stall = judge(rank("TP0", CAPTURE_DRAFT))

    assert stall.kind == "graph-capture"
    assert stall.experiments[0].id == "sglang-draft-extend-graph-off"
    assert stall.experiments[0].add_env == {"SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH": "1"}


def test_ranks_that_wait_are_told_from_the_one_they_wait_for():
    stall = judge(rank("TP0", ALL_REDUCE), rank("TP1", ALL_REDUCE), rank("TP2", LOAD), phase="weights")

    assert stall.kind == "collective"
    assert "TP0, TP1 wait for TP2" in stall.asymmetry
    assert "all_reduce" in stall.asymmetry


def test_ranks_in_the_same_place_are_no_asymmetry():
    assert asymmetry([position_of(rank("TP0", ALL_REDUCE)), position_of(rank("TP1", ALL_REDUCE))]) == ""


def test_a_collective_inside_a_capture_is_said():
    stall = judge(rank("TP0", (*ALL_REDUCE, *CAPTURE_TARGET)), rank("TP1", (*ALL_REDUCE, *CAPTURE_TARGET)))

    assert stall.kind == "graph-capture"
    assert "inside a collective" in stall.what


def test_a_stopped_process_is_frozen_whatever_its_frames_say():
    stall = judge(rank("EngineCore", LOAD, status="T"), phase="ready", engine="vllm", version="0.32.0")

    assert stall.kind == "frozen"
    assert "pid" in stall.what


def test_two_equal_samples_confirm_and_one_does_not():
    assert judge(rank("TP0", LOAD)).is_confirmed
    only = classify(
        sample(rank("TP0", LOAD)),
        None,
        StallContext(phase="weights", phase_title="w", role=None, engine="vllm", version=None, unmoved=()),
    )
    assert not only.is_confirmed


def test_frames_that_change_mean_slow_not_hung():
    first, second = sample(rank("TP0", LOAD)), sample(rank("TP0", LOAD[1:]), at=10.0)

    assert stacks_moved(first, second)
    assert not stacks_moved(first, first)


def test_helpers_are_no_ranks():
    stall = judge(rank("detokenizer", ("recv_pyobj (zmq/sugar/socket.py:1)",)), rank("TP0", CAPTURE_DRAFT))

    assert stall.asymmetry == ""


def test_where_only_proc_may_be_read_the_kernels_words_count():
    disk = RankStack(
        label="TP0", pid=1, status="D", how="/proc", threads={"MainThread": ("state=D", "wchan=folio_wait_bit_common")}
    )

    assert position_of(disk).kind == "disk"


def test_py_spys_dump_is_read():
    text = """Process 19299: python x.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 19299 (idle): "MainThread"
    clock_nanosleep (libc.so.6)
    inner (sl.py:3)
    capture_one_batch_size (sl.py:4)
Thread 19301 (active): "bg"
    inner (sl.py:3)
"""
    threads = parse_py_spy(text)

    assert threads == {
        "MainThread (idle)": ("clock_nanosleep (libc.so.6)", "inner (sl.py:3)", "capture_one_batch_size (sl.py:4)"),
        "bg (active)": ("inner (sl.py:3)",),
    }


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize(
    "kind", ["graph-capture", "collective", "nccl-init", "weight-load", "jit", "autotune", "frozen"]
)
def test_every_kind_has_something_to_try(engine: str, kind: str):
    assert experiments_for(kind, None, engine, None)


def test_flags_are_those_of_the_version():
    def flags(version: str) -> set[str]:
        tried = experiments_for("graph-capture", "draft", "sglang", version)
        return {word for experiment in tried for word in experiment.add_flags if word.startswith("--")}

    assert "--cuda-graph-max-bs" in flags("0.5.9")
    assert "--cuda-graph-max-bs-decode" in flags("0.5.23")
    assert "--cuda-graph-max-bs" not in flags("0.5.23")


@pytest.mark.parametrize(
    ("engine", "version"),
    [
        ("sglang", "0.5.9"),
        ("sglang", "0.5.12"),
        ("sglang", "0.5.15.post1"),
        ("sglang", "0.5.17"),
        ("sglang", "0.5.23"),
        ("vllm", "0.25.1"),
        ("vllm", "0.33.0"),
    ],
)
def test_every_proposed_flag_is_one_that_the_version_has(engine: str, version: str):
    from eyas.contract.engines.registry import engine_named

    known = engine_named(engine).launching.flags.known(version)
    kinds = [
        "graph-capture",
        "collective",
        "nccl-init",
        "weight-load",
        "jit",
        "autotune",
        "frozen",
        "compile",
        "core-silent",
        "unknown",
    ]
    for kind in kinds:
        for experiment in experiments_for(kind, None, engine, version):
            for word in experiment.add_flags:
                assert not word.startswith("--") or known.knows(word), (experiment.id, word)
