"""Stored tensor names and the canonical ones of `DraftSpec`. Knows the spellings of every project; no shapes.

Two styles differ beyond the prefix of layer 0: in layers >= 1 the norm before attention is `input_layernorm` (vLLM,
speculators, ModelOpt) or `hidden_norm` (SGLang, whose `input_layernorm` there is never used). Canonical is the first.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

_LEGACY = {"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}
_LAYER = re.compile(r"^layers\.(0|[1-9]\d{0,3})\.(.+)$")
_MODULES = re.compile(
    r"^(fc|input_norm|fc_norm\.\d{1,2}|norm|lm_head|embed_tokens"
    r"|layers\.\d+\.(input_layernorm|hidden_norm|post_attention_layernorm"
    r"|self_attn\.(q|k|v|o)_proj|self_attn\.(q|k)_norm"
    r"|self_attn\.(q_a_proj|q_a_layernorm|q_b_proj|kv_a_proj_with_mqa|kv_a_layernorm|kv_b_proj)"
    r"|mlp\.(gate|up|down)_proj))$"
)
# what stands in the place of `weight` where several values are packed into one
PACKED_WEIGHTS = ("weight_packed", "qweight")
# companions of a quantised weight: compressed-tensors, ModelOpt, DeepSeek fp8, GPTQ, AWQ
SCALE_SUFFIXES = frozenset({
    "weight_scale", "weight_scale_inv", "weight_scale_2", "input_scale", "weight_zero_point", "weight_packed",
    "weight_shape", "weight_g_idx", "weight_global_scale", "input_global_scale", "k_scale", "v_scale",
    "qweight", "qzeros", "scales", "g_idx",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NameStyle:
    """How a format spells names.

    Attributes:
        first_layer: prefix of layer 0.
        inner_norm: the norm before attention in layers >= 1.
    """

    first_layer: Literal["midlayer", "layers.0"]
    inner_norm: Literal["hidden_norm", "input_layernorm"]


SGLANG_NAMES = NameStyle(first_layer="midlayer", inner_norm="hidden_norm")
SINGLE_MIDLAYER_NAMES = NameStyle(first_layer="midlayer", inner_norm="input_layernorm")
LAYERS_NAMES = NameStyle(first_layer="layers.0", inner_norm="input_layernorm")


def canonical_names(stored: Mapping[str, object]) -> dict[str, str | None]:
    """Stored name -> canonical name, None for a name that no draft has.

    Two stored names may give the same canonical one; the caller reports that.
    """
    # SGLang's spelling: some layer >= 1 has a hidden_norm. Its input_layernorm, if there, is never used
    has_inner_hidden = any(re.search(r"layers\.[1-9]\d*\.hidden_norm\.", name) for name in stored)
    return {name: _canonical(name, has_inner_hidden) for name in stored}


def module_and_kind(canonical: str) -> tuple[str, str]:
    """("layers.0.self_attn.q_proj", "weight") of its canonical name; a map has the kind ""."""
    if canonical in ("d2t", "t2d"):
        return canonical, ""
    module, _, kind = canonical.rpartition(".")
    return module, kind


def stored_name(canonical: str, style: NameStyle) -> str:
    """The name of a canonical tensor in `style`."""
    match = _LAYER.match(canonical)
    if match is None:
        return canonical
    layer, rest = match.groups()
    if layer == "0":
        return f"{style.first_layer}.{rest}"
    if style.inner_norm == "hidden_norm" and rest.startswith("input_layernorm."):
        rest = rest.replace("input_layernorm.", "hidden_norm.", 1)
    return f"layers.{layer}.{rest}"


def _canonical(stored: str, has_inner_hidden: bool) -> str | None:
    name = stored.removeprefix("model.")
    if "mask_hidden" in name:
        return "mask_hidden"
    if name.rsplit(".", 1)[-1] in ("d2t", "t2d") and name.count(".") == 0:
        return name
    if name.startswith("midlayer."):
        name = f"layers.0.{name.removeprefix('midlayer.')}"
    for old, new in _LEGACY.items():
        if name.startswith(f"{old}."):
            name = name.replace(old, new, 1)
    match = _LAYER.match(name)
    if match is not None and match.group(1) != "0" and has_inner_hidden:
        if match.group(2).startswith("hidden_norm."):
            name = f"layers.{match.group(1)}.{match.group(2).replace('hidden_norm', 'input_layernorm', 1)}"
        elif match.group(2).startswith("input_layernorm."):
            return f"layers.{match.group(1)}.unused_input_layernorm.{match.group(2).rsplit('.', 1)[-1]}"
    module, _, kind = name.rpartition(".")
    if not _MODULES.match(module) or (kind not in ("weight", "bias") and kind not in SCALE_SUFFIXES):
        return None
    return name
