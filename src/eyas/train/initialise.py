"""A new draft: its `DraftSpec` from the target's shape, its weights before any training."""

import torch

from eyas.contract.draft_spec import DraftSpec
from eyas.contract.target_spec import TargetSpec
from eyas.errors import EyasError
from eyas.models.draft import Eagle3Draft
from eyas.models.target import Target

# Of the linear layers; what Llama and the EAGLE code start from.
_INIT_STD = 0.02


class TargetShapeUnknown(EyasError):
    """The target's config leaves out a size that the draft would take from it."""

    code = "target-shape-unknown"


class AuxBoundaryBeyondTarget(EyasError):
    """A boundary counts more layers than the target has."""

    code = "aux-boundary-beyond-target"


def default_aux_boundaries(num_layers: int) -> tuple[int, ...]:
    """Low, middle and high: 2, N // 2 and N - 3 layers applied, the default of SGLang and vLLM.

    Targets too shallow for that take boundaries as far apart as they have.
    """
    usual = (2, num_layers // 2, num_layers - 3)
    shallow = (1, num_layers // 2, num_layers - 1)
    return next((b for b in (usual, shallow) if b[0] < b[1] < b[2]), (1, 2, 3))


def draft_spec_for(
    target: TargetSpec,
    *,
    vocab_size: int,
    draft_vocab_size: int,
    trained_length: int,
    aux_boundaries: tuple[int, ...] | None = None,
) -> DraftSpec:
    """A one-layer EAGLE-3 draft as wide as the target, with the target's attention shape, RoPE and embedding.

    Args:
        vocab_size: rows of the target's embedding, V.
        draft_vocab_size: D; equal to V means no vocabulary map.
        trained_length: longest training row, tokens.
        aux_boundaries: in `fc` order; None for `default_aux_boundaries`.

    Raises:
        AuxBoundaryBeyondTarget: a boundary is deeper than the target.
        TargetShapeUnknown: the target's config does not say its number of heads, or the width of its MLP.
    """
    sizes = {
        "num_heads": target.num_heads,
        "num_kv_heads": target.num_kv_heads,
        "head_dim": target.head_dim,
        "intermediate_size": target.intermediate_size,
    }
    missing = [name for name, value in sizes.items() if value is None]
    if missing:
        raise TargetShapeUnknown(
            f"the target's config does not give {', '.join(missing)}",
            target.where,
            "a new draft takes its shape from the target",
            "start from a draft of the wanted shape: --init-from D",
        )
    boundaries = aux_boundaries or default_aux_boundaries(target.num_layers)
    if boundaries[-1] > target.num_layers:
        raise AuxBoundaryBeyondTarget(
            f"there is no state after {boundaries[-1]} layers",
            f"--aux-boundaries {' '.join(map(str, boundaries))}",
            f"the target has {target.num_layers} layers; boundaries count the layers applied, 0 … {target.num_layers}",
            "give smaller ones",
        )
    return DraftSpec(
        num_aux=len(boundaries),
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size or 0,
        num_heads=target.num_heads or 0,
        num_kv_heads=target.num_kv_heads or 0,
        head_dim=target.head_dim or 0,
        vocab_size=vocab_size,
        draft_vocab_size=draft_vocab_size,
        rms_norm_eps=target.rms_norm_eps or 1e-6,
        rope=target.rope,
        max_position_embeddings=target.max_position_embeddings or 2048,
        aux_boundaries=boundaries,
        embedding="target",
        head="own",
        trained_length=trained_length,
        target=target.as_document(),
    )


@torch.no_grad()
def initialise(draft: Eagle3Draft, target: Target, seed: int) -> None:
    """Fill a new draft in place: normal weights, norms of one, the head from the target's rows.

    The head keeps the geometry of the target's and is scaled down to the spread of the other weights: at full size it
    would be confidently wrong at first (on SmolLM2 the first loss is 72 against 32, and learning starts later).
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)
    for parameter in draft.parameters():
        if parameter.ndim >= 2:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * _INIT_STD)
    if draft.lm_head is not None:
        offered = draft.to_target_ids(torch.arange(draft.spec.draft_vocab_size, device=target.device))
        rows = target.parts.head[offered].to(draft.lm_head.weight.dtype)
        draft.lm_head.weight.copy_(rows * (_INIT_STD / rows.std()))
