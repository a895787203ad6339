"""From folders to an `Engine`: takes the fast path if it fits, and says so if it does not."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import get_args

import torch

from eyas.contract.reading.open_draft import open_draft
from eyas.contract.spec.target_spec import read_target
from eyas.engine.captured.open_captured import Rounds, open_path
from eyas.engine.eagle_draft import FusedDraft, ReferenceDraft, why_not_fused
from eyas.engine.engine import Engine
from eyas.engine.llama.llama_target import LlamaTarget
from eyas.engine.llama.llama_weights import quantise_llama, read_llama, why_not_fast
from eyas.engine.llama.native import NativeKernels, load_kernels
from eyas.engine.llama.native_stack import NativeStack
from eyas.engine.sequence_protocols import DraftSequence, TargetSequence
from eyas.engine.transformers_target import TransformersTarget
from eyas.errors import EyasError
from eyas.models.draft import Eagle3Draft, required_boundaries
from eyas.models.load_draft import load_draft
from eyas.models.placement import Placement
from eyas.models.target import Target as ModelTarget
from eyas.models.target.quantise import Quantisation, quantise_target, require_quantisable
from eyas.talk import Talk


class EngineOptionsInvalid(EyasError):
    """An engine cannot be opened so."""

    code = "engine-options-invalid"


_WORTH = 0.95  # more threads must be this much faster: they suffer more from whatever else runs
_NUM_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedEngine:
    """An engine, and what it is made of.

    Attributes:
        target_path, draft_path: `captured CUDA graph`, `native kernels`, `torch`, `transformers` or `reference`, for
            a report; requests that the captured rounds do not take go by the others, and a note says so.
        num_threads: that our CPU kernels use; the others use what torch is set to.
        weight_bytes: what one pass of one row reads; None where it is not known.
    """

    engine: Engine
    target_path: str
    draft_path: str | None
    num_threads: int
    weight_bytes: int | None


def open_engine(
    target_folder: Path,
    draft_path: Path | None,
    placement: Placement,
    *,
    cache: Path,
    num_threads: int,
    talk: Talk,
    rounds: Rounds = "auto",
    quantize: Quantisation = "none",
) -> OpenedEngine:
    """Load a target and, if given, a draft for it.

    Args:
        target_folder: a Hugging Face folder.
        draft_path: folder or file in any format that `contract` reads.
        placement: dtype and device of both.
        cache: eyas' cache folder, for compiled kernels.
        num_threads: the most for our own CPU kernels; fewer are used, and set for torch, if that is faster.
        rounds: "auto" captures whole rounds into CUDA graphs where that is possible; "reference" never does;
            "uncaptured" runs the captured rounds as written, on any device, for tests.
        quantize: weights of the target's layers; not in our own kernels, and not captured.

    Raises:
        EngineOptionsInvalid: threads below 1, or an unknown value of `rounds` or `quantize`.
        EnvironmentMissing, QuantisationUnsupported: see `models.quantise`.
        AuxBoundariesUnknown: the draft's config does not say, and the target has no default.
        What `read_target`, `load_draft` and `models.Target.load` raise.
    """
    _require_options(num_threads, rounds, quantize)
    require_quantisable(quantize, placement)
    spec = read_target(target_folder)
    if draft_path is not None:
        open_draft(draft_path, spec)  # what is wrong with it is said before the target loads
    kernels = None
    if placement.device.type == "cpu" and placement.dtype == torch.float32:
        kernels = load_kernels(cache, talk)
    opened = _open_target(
        target_folder, placement, kernels if quantize == "none" else None, num_threads, quantize, talk
    )
    target, path, weight_bytes, shared = opened
    if isinstance(target, LlamaTarget) and isinstance(target.stack, NativeStack) and num_threads > 1:
        num_threads = _fastest(target, target.stack, num_threads, talk)
    draft, runner, drafts_by = None, None, None
    if draft_path is not None:
        draft = load_draft(
            draft_path,
            placement,
            target_spec=spec,
            target_embedding=shared[0],
            target_head=shared[1],
            talk=talk,
        )
        runner, drafts_by = draft_runner(draft, kernels, num_threads, talk)
    fast = None
    if isinstance(target, LlamaTarget) and not target.weights.is_quantised:
        fast = open_path(target.weights, draft, tuple(runner.aux_boundaries) if runner else (), rounds, talk)
        if fast is not None:  # captured rounds never show their logits
            target.start(64, ())
            target.prefill([0])
    if fast is not None:
        path, drafts_by = fast.name, drafts_by and fast.name
    return OpenedEngine(
        engine=Engine(target, runner, fast=fast),
        target_path=path,
        draft_path=drafts_by,
        num_threads=num_threads,
        weight_bytes=weight_bytes,
    )


def _require_options(num_threads: int, rounds: str, quantize: str) -> None:
    wrong = []
    if not isinstance(num_threads, Integral) or num_threads < 1:
        wrong.append(f"num_threads is {num_threads!r}, must be a whole number, 1 or more")
    for name, value, known in (("rounds", rounds, get_args(Rounds)), ("quantize", quantize, get_args(Quantisation))):
        if value not in known:
            wrong.append(f"{name} is {value!r}, must be one of {', '.join(known)}")
    if wrong:
        raise EngineOptionsInvalid(
            "an engine cannot be opened with these options", "open_engine", "; ".join(wrong), "correct the values named"
        )


def _fastest(target: LlamaTarget, stack: NativeStack, most: int, talk: Talk) -> int:
    """Set the stack to the number of threads at which one row is fastest now."""
    target.start(64, ())
    target.prefill([0] * 16)

    def one_row(threads: int) -> None:
        stack.num_threads = threads
        target.forward([0])
        target.truncate(16)

    stack.num_threads = choose_threads(most, one_row, time.perf_counter)
    torch.set_num_threads(stack.num_threads)  # prompts go through torch
    if stack.num_threads < most:
        talk.note(f"the engine uses {stack.num_threads} of {most} threads: more were measured and are not faster now")
    return stack.num_threads


def draft_runner(
    draft: Eagle3Draft, kernels: NativeKernels | None, num_threads: int, talk: Talk
) -> tuple[DraftSequence, str]:
    """The fastest runner for a loaded draft, and its name for a report."""
    boundaries = required_boundaries(draft)
    reason = why_not_fused(draft.spec)
    if reason is not None:
        talk.note(f"the draft runs on the reference path: {reason}")
        return ReferenceDraft(draft, boundaries), "reference"
    fused = FusedDraft(draft, boundaries, kernels=kernels, num_threads=num_threads)
    return fused, "native kernels" if kernels else "torch"


def _open_target(
    folder: Path,
    placement: Placement,
    kernels: NativeKernels | None,
    num_threads: int,
    quantize: Quantisation,
    talk: Talk,
) -> tuple[TargetSequence, str, int | None, tuple[torch.Tensor, torch.Tensor]]:
    reason = why_not_fast(json.loads((folder / "config.json").read_text("utf-8")))
    if reason is None:
        weights = read_llama(folder, dtype=placement.dtype, device=placement.device)
        weights = quantise_llama(weights, quantize, talk)
        target = LlamaTarget(weights, kernels=kernels, num_threads=num_threads)
        path = "native kernels" if kernels else "torch"
        return target, path, weights.num_bytes, (weights.embedding, weights.head)
    talk.note(f"the target runs through transformers: {reason}")
    model = ModelTarget.load(folder, placement)
    quantise_target(model, quantize, talk)
    return TransformersTarget(model), "transformers", None, (model.parts.embedding, model.parts.head)


def candidates(most: int) -> list[int]:
    """1, 2, 4 … and `most`."""
    powers = [1 << i for i in range(most.bit_length()) if 1 << i < most]
    return [*powers, most]


def choose_threads(most: int, run: Callable[[int], None], clock: Callable[[], float]) -> int:
    """The number of threads, 1 … `most`, at which `run(threads)` is fastest.

    Args:
        most: threads that torch would use.
        run: one typical pass with this number of threads.
        clock: seconds.
    """
    best, best_s = 1, float("inf")
    for threads in candidates(most):
        run(threads)  # wakes the threads up
        seconds = min(_timed(run, threads, clock) for _ in range(_NUM_TRIES))
        if seconds < best_s * (_WORTH if threads > 1 else 1.0):
            best, best_s = threads, seconds
    return best


def _timed(run: Callable[[int], None], threads: int, clock: Callable[[], float]) -> float:
    started = clock()
    run(threads)
    return clock() - started
