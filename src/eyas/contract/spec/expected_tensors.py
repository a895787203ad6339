"""Which tensors a draft of given sizes and switches consists of, with their shapes. Knows no file and no format."""

from collections.abc import Mapping
from dataclasses import dataclass

from eyas.contract.spec.draft_spec import DraftSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One tensor that the function needs, or may have."""

    shape: tuple[int, ...]
    required: bool = True


def expected_tensors(spec: DraftSpec) -> Mapping[str, Expected]:
    """Canonical name -> shape of every tensor of `spec`; `spec.tensors` is not looked at."""
    hidden, wide = spec.hidden_size, spec.num_aux * spec.target_hidden_size
    found: dict[str, tuple[int, ...]] = {"norm.weight": (hidden,)}
    if spec.num_aux:
        found["fc.weight"] = (hidden, wide)
    if spec.fc_bias:
        found["fc.bias"] = (hidden,)
    if spec.aux_norm == "over-concat":
        found["input_norm.weight"] = (wide,)
    if spec.aux_norm == "per-state":
        found.update({f"fc_norm.{a}.weight": (spec.target_hidden_size,) for a in range(spec.num_aux)})
    for layer in range(spec.num_layers):
        found.update(_layer(spec, layer))
    if spec.embedding == "own":
        found["embed_tokens.weight"] = (spec.vocab_size, hidden)
    if spec.head == "own":
        found["lm_head.weight"] = (spec.draft_vocab_size, hidden)
    if spec.has_vocab_map:
        found["d2t"] = (spec.draft_vocab_size,)
    optional = {"d2t": (spec.draft_vocab_size,), "t2d": (spec.vocab_size,)}
    if spec.attention_bias:
        optional.update({f"layers.{i}.self_attn.o_proj.bias": (hidden,) for i in range(spec.num_layers)})
    return {
        **{name: Expected(shape=shape) for name, shape in found.items()},
        **{name: Expected(shape=shape, required=False) for name, shape in optional.items() if name not in found},
    }


def _layer(spec: DraftSpec, layer: int) -> dict[str, tuple[int, ...]]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if layer == 0:
        shapes["hidden_norm.weight"] = (hidden,)
    if spec.mlp_bias:
        shapes.update({f"mlp.{name}_proj.bias": (size,) for name, size in _mlp_sizes(spec)})
    attention = _mla(spec, layer) if spec.draft_class == "mla" else _gqa(spec, layer)
    shapes.update({f"self_attn.{name}": shape for name, shape in attention.items()})
    return {f"layers.{layer}.{name}": shape for name, shape in shapes.items()}


def _mlp_sizes(spec: DraftSpec) -> tuple[tuple[str, int], ...]:
    return ("gate", spec.intermediate_size), ("up", spec.intermediate_size), ("down", spec.hidden_size)


def _gqa(spec: DraftSpec, layer: int) -> dict[str, tuple[int, ...]]:
    width = spec.hidden_size * (2 if layer == 0 else 1)
    rows = {"q": spec.num_heads, "k": spec.num_kv_heads, "v": spec.num_kv_heads}
    shapes: dict[str, tuple[int, ...]] = {
        f"{name}_proj.weight": (heads * spec.head_dim, width) for name, heads in rows.items()
    }
    shapes["o_proj.weight"] = (spec.hidden_size, spec.num_heads * spec.head_dim)
    if spec.attention_bias:
        shapes.update({f"{name}_proj.bias": (heads * spec.head_dim,) for name, heads in rows.items()})
    if spec.qk_norm:
        shapes.update({"q_norm.weight": (spec.head_dim,), "k_norm.weight": (spec.head_dim,)})
    return shapes


def _mla(spec: DraftSpec, layer: int) -> dict[str, tuple[int, ...]]:
    assert spec.mla is not None, "an MLA draft has MLA sizes"
    mla, width = spec.mla, spec.hidden_size * (2 if layer == 0 else 1)
    query = spec.num_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    shapes: dict[str, tuple[int, ...]] = {
        "kv_a_proj_with_mqa.weight": (mla.kv_lora_rank + mla.qk_rope_head_dim, width),
        "kv_a_layernorm.weight": (mla.kv_lora_rank,),
        "kv_b_proj.weight": (spec.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank),
        "o_proj.weight": (spec.hidden_size, spec.num_heads * mla.v_head_dim),
    }
    if mla.q_lora_rank is None:
        return {**shapes, "q_proj.weight": (query, width)}
    return {
        **shapes,
        "q_a_proj.weight": (mla.q_lora_rank, width),
        "q_a_layernorm.weight": (mla.q_lora_rank,),
        "q_b_proj.weight": (query, mla.q_lora_rank),
    }
