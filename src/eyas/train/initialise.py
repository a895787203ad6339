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


def default_aux_boundaries(num_layers: int) -> tuple[int, ...]:
    """Low, middle and high: 2, N // 2 and N - 3 layers applied, the default of SGLang and vLLM."""
    return (min(2, num_layers), num_layers // 2, max(0, num_layers - 3))


def draft_spec_for(target: TargetSpec, *, vocab_size: int, draft_vocab_size: int, trained_length: int) -> DraftSpec:
    """A one-layer EAGLE-3 draft as wide as the target, with the target's attention shape, RoPE and embedding.

    Args:
        vocab_size: rows of the target's embedding, V.
        draft_vocab_size: D; equal to V means no vocabulary map.
        trained_length: longest training row, tokens.

    Raises:
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
    return DraftSpec(
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
        aux_boundaries=default_aux_boundaries(target.num_layers),
        embedding="target",
        head="own",
        trained_length=trained_length,
        target=target.as_document(),
    )


@torch.no_grad()
def initialise(draft: Eagle3Draft, target: Target, seed: int) -> None:
    """Fill a new draft in place: normal weights, norms of one; the head starts as the target's own rows.

    The final norm starts as the target's too, since the target's head expects states scaled by it.
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)
    for parameter in draft.parameters():
        if parameter.ndim >= 2:
            drawn = torch.randn(parameter.shape, generator=generator) * _INIT_STD
            parameter.copy_(drawn)
    if draft.lm_head is not None:
        offered = draft.to_target_ids(torch.arange(draft.spec.draft_vocab_size, device=target.device))
        draft.lm_head.weight.copy_(target.parts.head[offered])
        # An RMS norm of ones gives its scale, however its class stores it (Gemma keeps scale - 1).
        scale = target.parts.final_norm(torch.ones_like(target.parts.head[0]))
        if scale.abs().mean() > 0.01:
            draft.norm.weight.copy_(scale)
