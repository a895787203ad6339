"""A start of TensorRT-LLM: the lines that its source prints, in the order of a published log of 1.1.0rc3."""

from collections.abc import Iterable

import pytest

from eyas.serve.facts.evidence import ExitFacts
from eyas.serve.log.log_lines import LineSplitter
from eyas.serve.log.phases import PhaseTracker
from eyas.serve.log.tables import table_for
from eyas.serve.supervise.crash import CrashReader

AT = "[03/10/2026-12:00:00] [TRT-LLM]"
START = f"""\
[TensorRT-LLM] TensorRT-LLM version: 1.3.0rc7
{AT} [I] Using LLM with PyTorch backend
{AT} [I] rank 0 using MpiPoolSession to spawn MPI processes
[TensorRT-LLM] TensorRT-LLM version: 1.3.0rc7
{AT} [RANK 0] [I] ATTENTION RUNTIME FEATURES:  AttentionRuntimeFeatures(chunked_prefill=False)
{AT} [RANK 0] [I] Use 63.32 GB for model weights.
{AT} [RANK 0] [I] Prefetching 60.77GB checkpoint files.
{AT} [RANK 0] [I] Prefetching /models/target/model-00001-of-00002.safetensors to memory...
Loading safetensors weights in parallel: 100%|██████████| 2/2 [00:01<00:00,  1.61it/s]
Loading weights: 100%|██████████| 617/617 [00:29<00:00, 21.07it/s]
{AT} [RANK 0] [I] Prefetching 1.60GB checkpoint files.
Loading safetensors weights in parallel: 100%|██████████| 1/1 [00:00<00:00, 23.14it/s]
{AT} [RANK 0] [I] Model init total -- 49.14s
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.56 GiB for max tokens in paged KV cache (8224).
{AT} [RANK 0] [I] [Autotuner] Autotuning process starts ...
{AT} [RANK 0] [I] [Autotuner] Autotuning process ends
{AT} [RANK 0] [I] Creating CUDA graph instances for 11 batch sizes.
{AT} [RANK 0] [I] Run generation-only CUDA graph warmup for batch size=64, draft_len=3
{AT} [RANK 0] [I] iter = 1, global_rank = 0, rank = 0, num_scheduled_requests: 1, states = {{}}
{AT} [RANK 0] [I] Memory used after loading model weights (inside torch) in memory usage profiling: 63.52 GiB
{AT} [RANK 0] [I] Estimated max memory in KV cache : 5.95 GiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 5.95 GiB for max tokens in paged KV cache (86688).
{AT} [RANK 0] [I] [Autotuner] Autotuning process starts ...
{AT} [RANK 0] [I] [Autotuner] Autotuning process ends
{AT} [RANK 0] [I] Creating CUDA graph instances for 11 batch sizes.
{AT} [RANK 0] [I] Setting PyTorch memory fraction to 0.8
INFO:     Started server process [41]
INFO:     Waiting for application startup.
"""
READY = """\
INFO:     Application startup complete.
INFO:     Uvicorn running on http://localhost:8000 (Press CTRL+C to quit)
INFO:     127.0.0.1:40382 - "POST /v1/completions HTTP/1.1" 200 OK
"""
TIDY = """\
INFO:     Shutting down
INFO:     Waiting for application shutdown.
INFO:     Application shutdown complete.
INFO:     Finished server process [41]
"""


def _lines(text: str) -> Iterable:
    splitter = LineSplitter()
    yield from splitter.feed(text.encode(), 1.0)
    yield from splitter.flush(1.0)


def _track(text: str, engine: str = "tensorrt-llm") -> PhaseTracker:
    tracker = PhaseTracker(table_for(engine, None), 0.0)
    for line in _lines(text):
        tracker.feed(line)
    return tracker


@pytest.mark.parametrize("engine", ["tensorrt-llm", "unknown"])
def test_a_start_is_followed_through_its_phases(engine):
    tracker = _track(START, engine)

    assert [run.key for run in tracker.runs[1:]] == [
        "arguments",
        "processes",
        "weights:target",
        "weights:draft",
        "memory-pools",
        "autotune",
        "graphs",
        "profile",
        "scheduler-ready",
    ]
    assert tracker.ready_at is None
    assert tracker.facts["version"] == "1.3.0rc7"
    assert tracker.facts["kv_tokens"] == "86688"


@pytest.mark.parametrize("count", range(1, START.count("\n") + 1))
def test_no_beginning_of_a_start_is_taken_for_ready_or_for_an_end(count):
    tracker = _track("\n".join(START.splitlines()[:count]) + "\n")

    assert (tracker.ready_at, tracker.dying_at, tracker.finished_at, tracker.core_died) == (None, None, None, False)


def test_it_is_ready_when_the_server_says_so_and_ends_tidily():
    assert _track(START + READY).ready_at is not None

    ended = _track(START + READY + TIDY)

    assert ended.draining_at is not None
    assert ended.finished_at is not None
    assert ended.dying_at is None


def test_a_second_start_in_the_same_log_begins_anew():
    again = _track(START + READY + START)

    assert again.ready_at is None
    assert again.current.id == "scheduler-ready"


@pytest.mark.parametrize(
    ("raw", "label", "level", "message"),
    [
        (f"{AT} [RANK 3] [E] it broke", "RANK 3", "ERROR", "it broke"),
        (f"{AT} [W] careful", "", "WARNING", "careful"),
        ("[TensorRT-LLM][INFO] [MemUsageChange] x", "", "INFO", "[MemUsageChange] x"),
    ],
)
def test_its_prefixes_are_taken_off(raw, label, level, message):
    (line,) = _lines(raw)

    assert (line.label, line.level, line.message) == (label, level, message)
    assert (line.stamp is not None) == raw.startswith(AT)


def test_a_line_glued_to_a_bar_is_a_line_of_its_own():
    bar, line = _lines(f"Loading weights: 100%|██████████| 617/617 [00:29<00:00, 21.07it/s]{AT} [RANK 0] [I] done")

    assert bar.bar is not None
    assert line.message == "done"


def test_the_rank_that_failed_is_the_cause_and_not_what_its_parent_says():
    reader = CrashReader(table_for("tensorrt-llm", None))
    text = f"""\
{AT} [RANK 1] [E] Failed to initialize executor on rank 1: it broke
{AT} [RANK 1] [E] Traceback (most recent call last):
  File "/usr/lib/python3.12/site-packages/tensorrt_llm/executor/worker.py", line 337, in worker_main
    worker: GenerationExecutorWorker = worker_cls(
AttributeError: 'LlamaConfig' object has no attribute 'draft_vocab_size'

{AT} [E] Executor worker initialization error: Traceback (most recent call last):
  File "/usr/lib/python3.12/site-packages/tensorrt_llm/executor/worker.py", line 337, in worker_main
AttributeError: 'LlamaConfig' object has no attribute 'draft_vocab_size'
Traceback (most recent call last):
  File "/usr/bin/trtllm-serve", line 8, in <module>
RuntimeError: Executor worker returned error
"""
    for line in _lines(text):
        reader.feed(line)

    cause = reader.cause(
        ExitFacts(code=1, num_oom_kills=0), phase="while loading weights", self_killed=False, core_died=True
    )

    assert cause.diagnostic.code == "draft-vocab-size-unread"
    assert "RANK 1" in cause.diagnostic.where
    assert cause.traceback[-1].startswith("AttributeError")
