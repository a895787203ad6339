"""The `DraftSpec` of a new draft from the target's shape, and what `--freeze-…` can hold still in a draft."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from eyas.contract.spec.draft_spec import DraftSpec, Mla, Rope
from eyas.contract.spec.layer_ids import default_aux_boundaries, require_within
from eyas.contract.spec.target_spec import TargetSpec
from eyas.errors import EyasError
from eyas.train.config import DraftShape, TrainConfig, TrainConfigInvalid


class TargetShapeUnknown(EyasError):
    """The target's config does not give a size that a new draft takes from it."""

    code = "target-shape-unknown"


def draft_spec_for(
    target: TargetSpec,
    *,
    vocab_size: int,
    draft_vocab_size: int,
    trained_length: int,
    aux_boundaries: tuple[int, ...] | None = None,
    shape: DraftShape | None = None,
) -> DraftSpec:
    """An EAGLE-3 draft as wide as the target, with the target's heads and RoPE; the rest is `shape`'s.

    Args:
        vocab_size: rows of the target's embedding, V.
        draft_vocab_size: D; equal to V means no vocabulary map.
        trained_length: longest training row, tokens.
        aux_boundaries: in `fc` order; None for `default_aux_boundaries`.
        shape: None for one plain EAGLE-3 layer.

    Raises:
        AuxBoundaryBeyondTarget: a boundary is deeper than the target.
        TargetShapeUnknown: the target's config does not say its number of heads, or the width of its MLP.
    """
    shape = shape or DraftShape()
    heads = _mla_heads(target) if shape.attention == "mla" else _gqa_heads(target)
    wide = shape.intermediate_size or mlp_width(target)
    _require_sizes(target, {"num_heads": heads.num, "head_dim": heads.width, "intermediate_size": wide})
    boundaries = aux_boundaries or default_aux_boundaries(target.num_layers)
    require_within(boundaries, target.num_layers)
    is_mla = shape.attention == "mla"
    return DraftSpec(
        draft_class=shape.attention,
        num_aux=len(boundaries),
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        intermediate_size=wide or 0,
        num_layers=shape.num_layers,
        num_heads=heads.num or 0,
        num_kv_heads=heads.num_kv or heads.num or 0,
        head_dim=heads.width or 0,
        vocab_size=vocab_size,
        draft_vocab_size=draft_vocab_size,
        rms_norm_eps=target.rms_norm_eps or 1e-6,
        rope=_rope(target, is_mla=is_mla),
        max_position_embeddings=target.max_position_embeddings or 2048,
        qk_norm=shape.qk_norm,
        model_type=_model_type(target, shape),
        mla=heads.mla,
        residual=shape.residual,
        aux_norm=shape.aux_norm,
        feedback=shape.feedback,
        aux_boundaries=boundaries,
        embedding=shape.embedding,
        head="own",
        trained_length=trained_length,
        target=target.as_document(),
    )


def mlp_width(target: TargetSpec) -> int | None:
    """Width of a draft's MLP: the target's; 4 x hidden where the target's is that of one expert.

    DeepSeek and Qwen3-MoE name both widths; gpt-oss and Llama 4 have the expert's under the common name.
    """
    text = target.text_config
    if isinstance(dense := text.get("intermediate_size_mlp"), int):
        return dense
    is_expert = any(key in text for key in ("num_local_experts", "num_experts")) and "moe_intermediate_size" not in text
    return 4 * target.hidden_size if is_expert else target.intermediate_size


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeadSizes:
    """Attention sizes; None where the target's config does not give one."""

    num: int | None
    num_kv: int | None
    width: int | None
    mla: Mla | None = None


_LATENT_KEYS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
# Of a draft with grouped queries for a target with latent attention.
_KV_HEADS = 8


def _latent(target: TargetSpec) -> Mla | None:
    """The target's own latent attention; None where it has none."""
    text = target.text_config
    sizes = {key: text.get(key) for key in _LATENT_KEYS}
    if not all(isinstance(size, int) for size in sizes.values()):
        return None
    rank = text.get("q_lora_rank")
    return Mla(
        q_lora_rank=rank if isinstance(rank, int) else None, **{key: int(size or 0) for key, size in sizes.items()}
    )


def _gqa_heads(target: TargetSpec) -> _HeadSizes:
    latent = _latent(target)
    if latent is None or target.num_heads is None:
        return _HeadSizes(num=target.num_heads, num_kv=target.num_kv_heads, width=target.head_dim)
    # hidden / heads is not the width of a latent head; the width of its value is.
    num_kv = _KV_HEADS if target.num_heads % _KV_HEADS == 0 else target.num_heads
    return _HeadSizes(num=target.num_heads, num_kv=num_kv, width=latent.v_head_dim)


def _mla_heads(target: TargetSpec) -> _HeadSizes:
    latent, width = _latent(target), target.head_dim
    if latent is None and width is not None:
        # DeepSeek-V3's proportions: 128 : 64 : 128, latents of 4 and 12 heads.
        latent = Mla(
            q_lora_rank=12 * width,
            kv_lora_rank=4 * width,
            qk_nope_head_dim=width,
            qk_rope_head_dim=width // 2,
            v_head_dim=width,
        )
    width = latent.qk_nope_head_dim + latent.qk_rope_head_dim if latent else None
    return _HeadSizes(num=target.num_heads, num_kv=target.num_heads, width=width, mla=latent)


def _rope(target: TargetSpec, *, is_mla: bool) -> Rope:
    """The target's RoPE; over whole heads for a latent draft, whose rotated part has a width of its own."""
    return replace(target.rope, interleaved=True, partial_rotary_factor=1.0) if is_mla else target.rope


def _model_type(target: TargetSpec, shape: DraftShape) -> str:
    if shape.attention == "mla":
        return target.text_model_type if target.text_model_type == "kimi_k2" else "deepseek_v3"
    return "qwen3" if shape.qk_norm else "llama"


def _require_sizes(target: TargetSpec, sizes: Mapping[str, int | None]) -> None:
    missing = [name for name, value in sizes.items() if value is None]
    if missing:
        raise TargetShapeUnknown(
            f"the target's config does not give {', '.join(missing)}",
            target.where,
            "a new draft takes its shape from the target",
            "start from a draft of the wanted shape: --init-from D",
        )


def freeze_notes(spec: DraftSpec, config: TrainConfig, where: str) -> tuple[str, ...]:
    """Notes on options that freeze nothing.

    Args:
        where: the draft, for the message.

    Raises:
        TrainConfigInvalid: head and embedding are one trained tensor, and only one of them is to be frozen.
    """
    is_tied = spec.head == "tied" and spec.embedding == "own"
    if is_tied and config.freeze_head != config.freeze_embedding:
        given = "--freeze-head" if config.freeze_head else "--freeze-embedding"
        raise TrainConfigInvalid(
            "the draft's head and its embedding are one tensor, and only one of them is to be frozen",
            f"{given} for {where}",
            "the head is tied to the embedding, so one of the two cannot be trained without the other",
            "give both --freeze-head and --freeze-embedding, or neither",
        )
    notes = []
    if config.freeze_head and spec.head != "own" and not is_tied:
        owner = "the target's" if spec.head == "target" else "the target's embedding"
        notes.append(f"--freeze-head has nothing to freeze: the draft's head is {owner}, which is never trained")
    if config.freeze_embedding and spec.embedding != "own":
        notes.append("--freeze-embedding has nothing to freeze: the draft's embedding is the target's, never trained")
    return tuple(notes)
