"""A captured engine over the weights of `llama.llama_weights`, or the reason why there is none."""

from typing import Literal

import torch

from eyas.engine.captured.captured_engine import FastEngine, FastSettings
from eyas.engine.captured.captured_path import CapturedPath
from eyas.engine.captured.captured_round import new_round
from eyas.engine.captured.captured_weights import fast_draft, fast_target
from eyas.engine.captured.prompt_pass import prompt_pass
from eyas.engine.captured.round_ops import ReferenceOps, RoundOps
from eyas.engine.captured.tiles import TileChoice
from eyas.engine.cuda_graphs import FastPathUnsupported, why_not_captured
from eyas.engine.llama.llama_weights import LlamaWeights
from eyas.models.draft import Eagle3Draft
from eyas.talk import Talk

Rounds = Literal["auto", "reference", "uncaptured"]


def open_captured(
    weights: LlamaWeights,
    draft: Eagle3Draft | None = None,
    *,
    aux_boundaries: tuple[int, ...] = (),
    num_draft_tokens: int = 0,
    max_length: int = 4096,
    settings: FastSettings | None = None,
) -> FastEngine:
    """An engine of fixed depth over these weights.

    Args:
        weights: on the device and in the dtype to compute in; fused copies are made beside them.
        draft: in the same dtype on the same device; with `num_draft_tokens` 1 … 7.
        aux_boundaries: that the draft reads.
        max_length: positions of prompt, answer and rounds in flight.
        settings: launching; `captures` is off where `why_not_captured` has a reason.

    Raises:
        FastPathUnsupported: see `fast_target` and `fast_draft`.
    """
    device = weights.norm.device
    captures = why_not_captured(device) is None
    target = fast_target(weights, max_length=max_length, aux_boundaries=aux_boundaries)
    round_ = new_round(
        triton_ops(device) if captures else ReferenceOps(),
        target,
        fast_draft(draft, target) if draft is not None and num_draft_tokens else None,
        num_draft_tokens=num_draft_tokens,
        max_length=max_length,
    )
    settings = settings or FastSettings(captures=captures)
    prompt = prompt_pass(weights, round_.cache, aux_boundaries, captures=captures and settings.captures)
    return FastEngine(round_, settings, prompt=prompt)


def open_path(
    weights: LlamaWeights, draft: Eagle3Draft | None, aux_boundaries: tuple[int, ...], rounds: Rounds, talk: Talk
) -> CapturedPath | None:
    """The captured rounds for an `Engine`; None, with a note that says why, if they are impossible here.

    Args:
        weights, draft, aux_boundaries: see `CapturedPath`.
        rounds: "auto" = where the device can; "reference" = never; "uncaptured" = the same rounds run as
            written, on any device, for tests.
        talk: hears why not.
    """
    device = weights.norm.device
    if rounds == "reference" or (rounds == "auto" and device.type == "cpu"):
        return None
    reason = why_not_captured(device) if rounds == "auto" else None
    if reason is None:
        settings = FastSettings(captures=rounds == "auto")
        ops = triton_ops(device) if rounds == "auto" else ReferenceOps()
        try:
            return CapturedPath(weights, draft, aux_boundaries, ops=ops, settings=settings, talk=talk)
        except FastPathUnsupported as unsupported:
            reason = f"{unsupported.what}: {unsupported.where}"
    talk.note(f"rounds are not captured: {reason}; the reference rounds run instead")
    return None


def triton_ops(device: torch.device, tiles: TileChoice | None = None) -> RoundOps:
    """The Triton kernels for a CUDA device; kernels overlap where the device can (Hopper and newer)."""
    from eyas.engine.captured.triton_round_ops import TritonRoundOps

    return TritonRoundOps(
        tiles=tiles or TileChoice(),
        overlaps=torch.cuda.get_device_capability(device) >= (9, 0),
        num_multiprocessors=torch.cuda.get_device_properties(device).multi_processor_count,
    )
