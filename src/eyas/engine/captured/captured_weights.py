"""Weights in the order the captured round reads them: q, k, v in one matrix, gate and up in one, pairs side by side.

Knows Llama-shaped blocks (rmsnorm, GQA, full rotary halves, SwiGLU), in a target also with Qwen's bias on q, k, v or
norms on q and k. Refuses everything else: the reference round takes those. Shapes: V vocabulary, E hidden,
I intermediate, H query heads, G key/value heads, D head width.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eyas.contract.spec.draft_spec import DraftSpec
from eyas.engine.cuda_graphs import FastPathUnsupported
from eyas.engine.llama.llama_weights import BlockWeights, LlamaWeights
from eyas.models.draft import Eagle3Draft
from eyas.models.rope import inverse_frequencies


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadExtras:
    """What Qwen adds between the projection of q, k, v and their rotation.

    Attributes:
        bias: [(H + 2G) * D] in the order of `FastLayer.qkv`'s rows, or None (Qwen2 has it).
        norms: [2, D], of each query and each key head, or None (Qwen3 has them).
    """

    bias: Tensor | None
    norms: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FastLayer:
    """One decoder block.

    Attributes:
        qkv: [(H + 2G) * D, E or 2E]; rows of rotary pairs (j, j + D/2) of each head are neighbours, values too.
        out: [E, H * D].
        gate_up: [2I, E]; rows 2i and 2i + 1 are gate and up of feature i.
        down: [E, I].
        input_norm, post_norm: [E].
        hidden_norm: [E] of a draft's second input, else None.
        extras: None for Llama.
    """

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    input_norm: Tensor
    post_norm: Tensor
    hidden_norm: Tensor | None = None
    extras: HeadExtras | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadDims:
    """Attention sizes: query heads, key/value heads, head width."""

    num_query: int
    num_kv: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FastTarget:
    """A target in fused form.

    Attributes:
        embedding, head: [V, E]; the same tensor when tied.
        norm: [E].
        eps: of every rmsnorm.
        cos, sin: [L, D/2] fp32.
        aux_boundaries: tapped states, as the number of decoder layers applied (>= 1), in `fc` order.
    """

    layers: tuple[FastLayer, ...]
    embedding: Tensor
    head: Tensor
    norm: Tensor
    eps: float
    heads: HeadDims
    cos: Tensor
    sin: Tensor
    aux_boundaries: tuple[int, ...] = ()

    def untapped(self) -> "FastTarget":
        """The same without aux states: what plain decoding needs."""
        return replace(self, aux_boundaries=())


@dataclass(frozen=True, slots=True, kw_only=True)
class FastDraft:
    """An EAGLE-3 draft in fused form: `fc` [E, A * E_target], one layer, own norm and head.

    Attributes:
        offsets: [draft vocabulary] int64, target id = i + offsets[i]; None when the vocabularies are the same.
    """

    fc: Tensor
    layer: FastLayer
    embedding: Tensor
    head: Tensor
    norm: Tensor
    eps: float
    heads: HeadDims
    cos: Tensor
    sin: Tensor
    offsets: Tensor | None


def rope_table(inverse_frequencies: Tensor, num_positions: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """cos and sin, [num_positions, D/2] fp32, of inverse frequencies [D/2]; `scale` as YaRN has it."""
    positions = torch.arange(num_positions, device=inverse_frequencies.device, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequencies.float())
    return (angles.cos() * scale).contiguous(), (angles.sin() * scale).contiguous()


def interleaved_halves(weight: Tensor, width: int) -> Tensor:
    """Rows of each head [.., D, C] reordered 0, D/2, 1, D/2 + 1 … so that rotary pairs are neighbours."""
    split = weight.view(-1, 2, width // 2, weight.shape[-1])
    return split.transpose(1, 2).reshape(weight.shape)


def fast_block(
    block: BlockWeights, heads: HeadDims, *, attention_norm: Tensor, hidden_norm: Tensor | None
) -> FastLayer:
    """One block in the captured round's order.

    Args:
        attention_norm: [E] of the attention's (first) input.
        hidden_norm: [E] of a draft's second input.
    """
    gate, up = block.gate_up.chunk(2)
    bias, norms = block.qkv_bias, None
    if block.q_norm is not None and block.k_norm is not None:
        norms = torch.stack((block.q_norm, block.k_norm)).contiguous()
    if bias is not None:
        bias = interleaved_halves(bias[:, None], heads.width)[:, 0].contiguous()
    return FastLayer(
        qkv=interleaved_halves(block.qkv, heads.width).contiguous(),
        out=block.o.contiguous(),
        gate_up=torch.stack((gate, up), 1).flatten(0, 1).contiguous(),
        down=block.down.contiguous(),
        input_norm=attention_norm,
        post_norm=block.post_norm,
        hidden_norm=hidden_norm,
        extras=None if bias is None and norms is None else HeadExtras(bias=bias, norms=norms),
    )


def fast_target(weights: LlamaWeights, *, max_length: int, aux_boundaries: tuple[int, ...] = ()) -> FastTarget:
    """A target in fused pairs, on its device and in its dtype.

    Args:
        max_length: positions of prompt, answer and drafts; bounds the rotary table.
        aux_boundaries: tapped states, each in 1 … number of layers.

    Raises:
        FastPathUnsupported: a window, a partial rotary share, a head width that is not a power of two, boundary 0, or a
            boundary twice.
    """
    shape, blocks = weights.shape, weights.blocks
    is_once = len(set(aux_boundaries)) == len(aux_boundaries)
    odd = {
        "a sliding window": shape.window is not None,
        "a partly rotated head": shape.rotary_dim != shape.head_dim,
        f"heads of {shape.head_dim} numbers": not _is_power_of_two(shape.head_dim),
        f"aux boundaries {aux_boundaries}": not is_once or any(not 1 <= b <= len(blocks) for b in aux_boundaries),
    }
    _refuse("target", [name for name, is_so in odd.items() if is_so])
    heads = HeadDims(num_query=shape.num_heads, num_kv=shape.num_kv_heads, width=shape.head_dim)
    layers = []
    for block in blocks:
        assert block.input_norm is not None, "a target's blocks have their input norms"
        layers.append(fast_block(block, heads, attention_norm=block.input_norm, hidden_norm=None))
    cos, sin = rope_table(weights.inverse_frequencies.to(weights.norm.device), max_length, weights.rope_scale)
    return FastTarget(
        layers=tuple(layers),
        embedding=weights.embedding,
        head=weights.head,
        norm=weights.norm,
        eps=shape.eps,
        heads=heads,
        cos=cos,
        sin=sin,
        aux_boundaries=aux_boundaries,
    )


def fast_draft(draft: Eagle3Draft, target: FastTarget) -> FastDraft:
    """A draft in fused pairs, on its device; its dtype must be the target's.

    Raises:
        FastPathUnsupported: a semantic switch that the captured round does not compute.
    """
    spec = draft.spec
    _refuse_switches(spec, target)
    tensors = {name: t.detach() for name, t in draft.state_dict().items()}
    heads = HeadDims(num_query=spec.num_heads, num_kv=spec.num_kv_heads, width=spec.head_dim)
    cos, sin = rope_table(*_rope(spec, target))
    return FastDraft(
        fc=tensors["fc.weight"].contiguous(),
        layer=_draft_layer(tensors, heads),
        embedding=draft.embedding_weight.detach(),
        head=draft.head_weight.detach(),
        norm=tensors["norm.weight"],
        eps=spec.rms_norm_eps,
        heads=heads,
        cos=cos,
        sin=sin,
        offsets=tensors["d2t"] if spec.has_vocab_map else None,
    )


def with_length(
    target: FastTarget, draft: FastDraft | None, weights: LlamaWeights, spec: DraftSpec | None, max_length: int
) -> tuple[FastTarget, FastDraft | None]:
    """The same with rotary tables for `max_length` positions; `weights` and `spec` are what they were made of."""
    device = target.norm.device
    cos, sin = rope_table(weights.inverse_frequencies.to(device), max_length, weights.rope_scale)
    target = replace(target, cos=cos, sin=sin)
    if draft is None or spec is None:
        return target, None
    cos, sin = rope_table(*_rope(spec, target))
    return target, replace(draft, cos=cos, sin=sin)


def _rope(spec: DraftSpec, target: FastTarget) -> tuple[Tensor, int, float]:
    frequencies, scale = inverse_frequencies(spec.rope, spec.head_dim, spec.max_position_embeddings)
    return frequencies.to(target.cos.device), target.cos.shape[0], scale


def _draft_layer(tensors: Mapping[str, Tensor], heads: HeadDims) -> FastLayer:
    own = {name.removeprefix("layers.0."): t for name, t in tensors.items() if name.startswith("layers.0.")}
    qkv = [own[f"self_attn.{p}_proj.weight"] for p in "qkv"]
    block = BlockWeights(
        input_norm=None,
        qkv=torch.cat(qkv),
        qkv_bias=None,
        q_norm=None,
        k_norm=None,
        o=own["self_attn.o_proj.weight"],
        post_norm=own["post_attention_layernorm.weight"],
        gate_up=torch.cat((own["mlp.gate_proj.weight"], own["mlp.up_proj.weight"])),
        down=own["mlp.down_proj.weight"],
    )
    norms = (own["input_layernorm.weight"], own["hidden_norm.weight"])
    return fast_block(block, heads, attention_norm=norms[0], hidden_norm=norms[1])


def _refuse_switches(spec: DraftSpec, target: FastTarget) -> None:
    wanted = {
        "draft_class": (spec.draft_class, "gqa"),
        "num_layers": (spec.num_layers, 1),
        "qk_norm": (spec.qk_norm, False),
        "attention_bias": (spec.attention_bias, False),
        "residual": (spec.residual, "pre-norm"),
        "aux_norm": (spec.aux_norm, "none"),
        "feedback": (spec.feedback, "pre-norm"),
        "activation": (spec.activation, "silu"),
        "sliding_window": (spec.sliding_window, None),
        "rope.partial_rotary_factor": (spec.rope.partial_rotary_factor, 1.0),
        "rope.interleaved": (spec.rope.interleaved, False),
        "num_aux": (spec.num_aux, len(target.aux_boundaries)),
    }
    wrong = [f"{name} = {has!r} (knows {knows!r})" for name, (has, knows) in wanted.items() if has != knows]
    biases = sorted(name for name in spec.tensors if name.endswith(".bias"))
    width = [] if _is_power_of_two(spec.head_dim) else [f"head_dim = {spec.head_dim} (knows powers of two)"]
    _refuse("draft", wrong + width + biases)


def _is_power_of_two(width: int) -> bool:
    """What the attention kernel takes: its tiles have no ragged columns."""
    return width & (width - 1) == 0


def _refuse(model: str, wrong: list[str]) -> None:
    if wrong:
        raise FastPathUnsupported(
            f"the captured round does not compute this {model}",
            ", ".join(wrong),
            "it computes Llama blocks only; others would give wrong answers or lower acceptance, without an error",
            "open the engine with rounds='reference'",
        )
