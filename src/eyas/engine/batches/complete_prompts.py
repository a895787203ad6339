"""From a target's folder and requests to answers in batches, with memory planned before anything is read."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from eyas.engine.batches.batch_llama import BatchLlama, bytes_per_position, rounded_capacity
from eyas.engine.batches.batch_ops import BatchOps
from eyas.engine.batches.batch_plan import BatchPlan, SlotSize, default_budget, plan_batch, plan_slots
from eyas.engine.batches.batch_runner import BatchRunner, Pace, captured_pace
from eyas.engine.batches.completions_file import complete_to_file
from eyas.engine.batches.generator import BatchGenerator, Completion, Request
from eyas.engine.batches.prefill import PIECE_SIZES
from eyas.engine.batches.transformers_batch import TransformersBatch, cache_size
from eyas.engine.cuda_graphs import why_not_captured
from eyas.engine.llama.llama_weights import LlamaWeights, quantise_llama, read_llama, sliding_window, why_not_fast
from eyas.models.placement import Placement
from eyas.models.target import Target
from eyas.models.target.quantise import Quantisation, quantise_target, require_quantisable
from eyas.talk import Talk


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """How to run a batch.

    Attributes:
        max_batch: most sequences at a time; None = 1024 on a GPU, 256 elsewhere.
        budget_bytes: for the cache; None = 60 % of what is free once the weights are loaded.
        max_prefill_tokens: padded prompt tokens read at once.
        quantize: weights of the target's layers; the answers are then those of the quantised target.
    """

    max_batch: int | None = None
    budget_bytes: int | None = None
    max_prefill_tokens: int = 16384
    quantize: Quantisation = "none"

    def most_on(self, device: torch.device) -> int:
        """Most sequences at a time on this device."""
        return self.max_batch or (1024 if device.type == "cuda" else 256)

    def budget_on(self, device: torch.device) -> int:
        """Bytes for the cache on this device, by what is free now."""
        return cache_budget(device) if self.budget_bytes is None else self.budget_bytes


def complete_prompts(
    folder: Path,
    requests: Sequence[Request],
    out: Path,
    *,
    placement: Placement,
    decode: Callable[[Sequence[int]], str],
    target: str,
    settings: BatchSettings,
    talk: Talk,
) -> dict[str, Completion]:
    """Answer every request into `out`, resumably.

    Args:
        folder: of a target; the Llama family (`llama_weights.why_not_fast`) is fast.
        requests: with different ids, at least one.
        out: JSONL that is appended to.
        placement: dtype and device.
        decode: ids to text, for stop strings.
        target: the target's fingerprint.
        settings: how to run.
        talk: progress with tokens per second, and the plan.

    Returns:
        All answers by request id, earlier runs' included.

    Raises:
        BatchMemoryTooSmall: the longest request does not fit the budget.
        CompletionsOfAnotherRun: `out` was begun for something else.
    """
    require_quantisable(settings.quantize, placement)
    if settings.quantize != "none":
        target = f"{target}:{settings.quantize}"
    config = json.loads((folder / "config.json").read_text("utf-8"))
    reason = why_not_fast(config) or _why_not_window(config, requests)
    if reason is None:
        weights = read_llama(folder, dtype=placement.dtype, device=placement.device)
        weights = quantise_llama(weights, settings.quantize, talk)
        run = _fast(weights, requests, decode, settings, talk)
    else:
        talk.note(f"the target runs through transformers, which is many times slower: {reason}")
        model = Target.load(folder, placement)
        quantise_target(model, settings.quantize, talk)
        run = _slow(model, requests, decode, settings, talk)
    return complete_to_file(out, requests, run, target=target, talk=talk)


def _why_not_window(config: Mapping[str, Any], requests: Sequence[Request]) -> str | None:
    return why_not_window(sliding_window(config), rounded_capacity(_longest(requests)))


def why_not_window(window: int | None, longest: int) -> str | None:
    """Why texts of `longest` positions cannot be batched; None if they can."""
    if window is None or window >= longest:
        return None
    return f"texts of up to {longest} positions outgrow its window of {window}"


def _longest(requests: Sequence[Request]) -> int:
    return max(len(r.prompt_ids) + r.max_new_tokens for r in requests)


def _slow(
    model: Target,
    requests: Sequence[Request],
    decode: Callable[[Sequence[int]], str],
    settings: BatchSettings,
    talk: Talk,
) -> Callable[[Sequence[Request]], Iterable[Completion]]:
    size, longest, budget = cache_size(model), _longest(requests), settings.budget_on(model.device)
    position_bytes = -(-size.of(longest) // longest)
    plan = plan_batch(longest, len(requests), settings.most_on(model.device), position_bytes, budget)
    # Rows of a batch are padded to its longest prompt and run to its longest answer.
    width = max(len(r.prompt_ids) for r in requests) + max(r.max_new_tokens for r in requests)
    num = max(1, min(plan.num_slots, budget // size.of(width)))
    talk.line(f"{num} sequences at a time, {num * size.of(width) / 2**20:.0f} MiB of cache at most")
    return TransformersBatch(model, decode, talk, max_batch=num, max_prefill_tokens=settings.max_prefill_tokens).run


def _fast(
    weights: LlamaWeights,
    requests: Sequence[Request],
    decode: Callable[[Sequence[int]], str],
    settings: BatchSettings,
    talk: Talk,
) -> Callable[[Sequence[Request]], Iterable[Completion]]:
    plan = plan_for(weights, requests, settings)
    talk.line(f"{plan.num_slots} sequences at a time, {plan.num_bytes / 2**20:.0f} MiB of cache")
    reason = why_not_captured(weights.head.device)
    if reason is not None and weights.head.device.type == "cuda":
        talk.note(f"steps are not captured as CUDA graphs, which is many times slower: {reason}")

    def run(remaining: Sequence[Request]) -> Iterable[Completion]:
        runner = runner_for(weights, plan)
        return BatchGenerator(runner, decode, max_prefill_tokens=settings.max_prefill_tokens).run(remaining, talk)

    return run


def plan_for(weights: LlamaWeights, requests: Sequence[Request], settings: BatchSettings) -> BatchPlan:
    """The cache for these requests."""
    device, capacity = weights.head.device, rounded_capacity(_longest(requests))
    size = SlotSize(capacity=capacity, position_bytes=bytes_per_position(weights), num_spare=1)
    most = min(settings.most_on(device), len(requests))
    return plan_slots(size, settings.budget_on(device), least=1, most=most)


def runner_for(weights: LlamaWeights, plan: BatchPlan, *, captures: bool | None = None) -> BatchRunner:
    """The model with its cache, as fast as the device allows.

    Args:
        weights: of the target.
        plan: of the cache.
        captures: steps as CUDA graphs of Triton kernels; None = where that is possible.
    """
    device = weights.head.device
    if captures is None:
        captures = why_not_captured(device) is None
    model = BatchLlama(weights, plan.num_slots, plan.capacity, batch_ops(device, captures))
    return BatchRunner(model, batch_pace(plan.num_slots, captures))


def batch_ops(device: torch.device, captures: bool) -> BatchOps | None:
    """Triton kernels where passes are captured, else None: PyTorch's operators."""
    if not captures:
        return None
    from eyas.engine.batches.triton_batch_ops import TritonBatchOps

    return TritonBatchOps(torch.cuda.get_device_properties(device).multi_processor_count)


def batch_pace(num_slots: int, captures: bool, *, speculates: bool = False) -> Pace:
    """As far ahead of the host as pays; a round of speculation counts as several steps."""
    return captured_pace(num_slots, 2 if speculates else 4, PIECE_SIZES) if captures else Pace()


def cache_budget(device: torch.device) -> int:
    """Bytes that a cache may take there, by what is free now."""
    if device.type == "cuda":
        return default_budget(int(torch.cuda.mem_get_info(device)[0]))
    return default_budget(int(psutil.virtual_memory().available))
