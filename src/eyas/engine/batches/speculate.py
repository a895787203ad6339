"""A target and its draft for many sequences at a time: memory planned for both, or refused, before the first prompt.

Plain decoding and every number of drafts run over the same weights and caches, one after the other, so that they can be
compared. Only targets of the fast path: `transformers_batch.py` has no place for a draft.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from eyas.contract.spec.target_spec import read_target
from eyas.decode.sampling import Sampling
from eyas.engine.batches.batch_draft import BatchDraft, draft_bytes_per_position, require_batched
from eyas.engine.batches.batch_llama import BatchLlama, bytes_per_position, rounded_capacity
from eyas.engine.batches.batch_plan import BatchPlan, SlotSize, plan_slots
from eyas.engine.batches.batch_round import BatchSpeculation
from eyas.engine.batches.batch_runner import BatchRunner
from eyas.engine.batches.complete_prompts import batch_ops, batch_pace, cache_budget, why_not_window
from eyas.engine.batches.generator import BatchGenerator, Completion, Request
from eyas.engine.cuda_graphs import FastPathUnsupported, why_not_captured
from eyas.engine.known_ids import require_known_ids
from eyas.engine.llama.llama_weights import LlamaWeights, quantise_llama, read_llama, why_not_fast
from eyas.errors import EyasError
from eyas.models.chat_prompt import stop_ids_of
from eyas.models.draft import Eagle3Draft, required_boundaries
from eyas.models.load_draft import load_draft
from eyas.models.placement import Placement
from eyas.models.target.quantise import Quantisation, require_quantisable
from eyas.talk import Talk

_MOST_DRAFTS = 32


class BatchSettingsInvalid(EyasError):
    """Settings of a batch that are out of range."""

    code = "batch-settings-invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationSettings:
    """How to decode in batches.

    Attributes:
        num_draft_tokens: K, drafts per round, the bonus token excluded, 0 - 32; 0 = plain decoding.
        max_new_tokens: longest answer, at least 1.
        max_batch: most sequences at a time, at least 1; fewer if the memory budget is smaller.
        stop_ids: end an answer, themselves included; None = those that the target's folder states.
        sampling: greedy by default; prompt i draws with seed + i.
        budget_bytes: for the caches of target and draft; None = 60 % of what is free once the weights are loaded.
        max_prefill_tokens: padded prompt tokens read at once, at least 1.
    """

    num_draft_tokens: int = 3
    max_new_tokens: int = 128
    max_batch: int = 8
    stop_ids: frozenset[int] | None = None
    sampling: Sampling = field(default_factory=Sampling)
    budget_bytes: int | None = None
    max_prefill_tokens: int = 16384

    def __post_init__(self) -> None:
        wrong = [
            f"{name} is {value}, wanted {wanted}"
            for name, value, wanted, is_right in (
                ("num_draft_tokens", self.num_draft_tokens, "0 - 32", 0 <= self.num_draft_tokens <= _MOST_DRAFTS),
                ("max_new_tokens", self.max_new_tokens, "at least 1", self.max_new_tokens >= 1),
                ("max_batch", self.max_batch, "at least 1", self.max_batch >= 1),
                ("max_prefill_tokens", self.max_prefill_tokens, "at least 1", self.max_prefill_tokens >= 1),
            )
            if not is_right
        ]
        if wrong:
            raise BatchSettingsInvalid(
                "; ".join(wrong), "SpeculationSettings", "outside the range", "correct the values named"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPair:
    """A target and its draft, loaded.

    Attributes:
        weights: of the target.
        draft: in its dtype, on its device.
        aux_boundaries: that the draft reads, in `fc` order.
        stop_ids: that the target's folder states.
    """

    weights: LlamaWeights
    draft: Eagle3Draft
    aux_boundaries: tuple[int, ...]
    stop_ids: frozenset[int] = frozenset()

    @property
    def device(self) -> torch.device:
        """Where both compute."""
        return self.weights.head.device


def open_batch_pair(
    target_folder: Path, draft_path: Path, placement: Placement, talk: Talk, *, quantize: Quantisation = "none"
) -> BatchPair:
    """Load a target and a draft that can decode in batches.

    Args:
        target_folder: a Hugging Face folder of the Llama family.
        draft_path: folder or file in any format that `contract` reads.
        placement: dtype and device of both.
        talk: notes.
        quantize: weights of the target's layers; texts are then those of the quantised target.

    Raises:
        FastPathUnsupported: the target goes through transformers only, or the draft cannot speculate in batches.
        What `read_target`, `read_llama`, `load_draft` and `required_boundaries` raise.
    """
    require_quantisable(quantize, placement)
    spec = read_target(target_folder)
    reason = why_not_fast(json.loads((target_folder / "config.json").read_text("utf-8")))
    if reason is not None:
        raise _unsupported(target_folder.name, f"it goes through transformers: {reason}")
    weights = read_llama(target_folder, dtype=placement.dtype, device=placement.device)
    draft = load_draft(
        draft_path,
        placement,
        target_spec=spec,
        target_embedding=weights.embedding,
        target_head=weights.head,
        talk=talk,
    )
    require_batched(draft.spec)
    return BatchPair(
        weights=quantise_llama(weights, quantize, talk),
        draft=draft,
        aux_boundaries=tuple(required_boundaries(draft)),
        stop_ids=stop_ids_of(target_folder),
    )


def plan_pair(
    pair: BatchPair,
    requests: Sequence[Request],
    depths: Sequence[int],
    *,
    least: int = 1,
    most: int,
    budget_bytes: int | None = None,
) -> BatchPlan:
    """The caches of target and draft for these requests, for every number of drafts in turn.

    Args:
        pair: loaded.
        requests: at least one.
        depths: every K that will run; 0 = plain decoding, which needs no draft.
        least, most: sequences at a time that there must and may be.
        budget_bytes: as `SpeculationSettings.budget_bytes`.

    Raises:
        BatchMemoryTooSmall: `least` do not fit.
        FastPathUnsupported: texts outgrow the target's attention window.
    """
    longest = max(len(r.prompt_ids) + r.max_new_tokens for r in requests)
    size = _slot_size(pair, rounded_capacity(longest + max(depths)), depths)
    reason = why_not_window(pair.weights.shape.window, size.capacity)
    if reason is not None:
        raise _unsupported(f"window {pair.weights.shape.window}", reason)
    budget = cache_budget(pair.device) if budget_bytes is None else budget_bytes
    return plan_slots(size, budget, least=least, most=min(most, len(requests)))


def _slot_size(pair: BatchPair, capacity: int, depths: Sequence[int]) -> SlotSize:
    position_bytes = bytes_per_position(pair.weights)
    if any(depths):
        position_bytes += draft_bytes_per_position(pair.draft)
    # Of each depth: the states that the draft reads, M rows of them, and the one that the next step starts from.
    aux_width = len(pair.aux_boundaries) * pair.weights.shape.hidden
    widths = (aux_width * (depth + 1) + pair.draft.spec.hidden_size for depth in depths if depth)
    row_bytes = sum(widths) * pair.weights.head.element_size()
    return SlotSize(capacity=capacity, position_bytes=position_bytes, row_bytes=row_bytes, num_spare=1)


def runners_for(
    pair: BatchPair, plan: BatchPlan, depths: Sequence[int], *, captures: bool | None = None
) -> dict[int, BatchRunner]:
    """One runner per number of drafts, over the same caches: one runs to its end before the next begins.

    Args:
        pair: loaded.
        plan: of the caches.
        depths: different; 0 = plain decoding.
        captures: steps and rounds as CUDA graphs of Triton kernels; None = where that is possible.
    """
    if captures is None:
        captures = why_not_captured(pair.device) is None
    ops = batch_ops(pair.device, captures)
    model = BatchLlama(pair.weights, plan.num_slots, plan.capacity, ops)
    draft = BatchDraft(pair.draft, plan.num_slots, plan.capacity, ops) if any(depths) else None
    runners = {}
    for depth in depths:
        pace = batch_pace(plan.num_slots, captures, speculates=depth > 0)
        speculation = BatchSpeculation(draft, pair.aux_boundaries, depth, model) if draft and depth else None
        runners[depth] = BatchRunner(model, pace, speculation)
    return runners


def speculate(
    pair: BatchPair, prompts: Sequence[Sequence[int]], settings: SpeculationSettings, talk: Talk
) -> list[Completion]:
    """Answer prompts, many at a time; each text is the one that its prompt gets alone.

    Args:
        pair: from `open_batch_pair`.
        prompts: token ids, chat template applied; at least one id each.
        settings: how to decode.
        talk: the plan, and progress with tokens per second.

    Returns:
        One answer per prompt, in order; `accepted` counts the accepted drafts of each round.

    Raises:
        BatchMemoryTooSmall: the longest prompt with its answer does not fit.
        FastPathUnsupported: texts outgrow the target's attention window.
        PromptEmpty: a prompt has no tokens.
        PromptOutsideVocabulary: a prompt has an id that the target does not have.
    """
    stop_ids = pair.stop_ids if settings.stop_ids is None else settings.stop_ids
    requests = [
        Request(
            id=str(i),
            prompt_ids=require_known_ids(ids, pair.weights.embedding.shape[0], f"prompt {i}"),
            max_new_tokens=settings.max_new_tokens,
            sampling=settings.sampling.of_text(i),
            stop_ids=stop_ids,
        )
        for i, ids in enumerate(prompts)
    ]
    if not requests:
        return []
    depth = settings.num_draft_tokens
    plan = plan_pair(pair, requests, [depth], most=settings.max_batch, budget_bytes=settings.budget_bytes)
    talk.line(f"{plan.num_slots} sequences at a time, {plan.num_bytes / 2**20:.0f} MiB of cache")
    runner = runners_for(pair, plan, [depth])[depth]
    generator = BatchGenerator(runner, _no_text, max_prefill_tokens=settings.max_prefill_tokens)
    found = {c.id: c for c in generator.run(requests, talk)}
    return [found[request.id] for request in requests]


def _no_text(ids: Sequence[int]) -> str:
    raise AssertionError("without stop strings nothing is decoded")


def _unsupported(where: str, reason: str) -> FastPathUnsupported:
    return FastPathUnsupported(
        "this target cannot speculate in batches",
        f"target {where}",
        reason,
        "decode one stream at a time (eyas bench without --batch), or serve it with SGLang or vLLM",
    )
