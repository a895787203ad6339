"""Writing a config.json of one level, every switch explicit: what SGLang, vLLM, ModelOpt and most trainers read."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from eyas.contract.dialects.dialect import Written, loss
from eyas.contract.dialects.limits import FormatLimits, dropped_by, losses
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.layer_ids import Convention, LayerIds, LayerIdsUnwritable, default_boundaries, sglang_convention
from eyas.contract.spec.rope import write_rope
from eyas.contract.spec.target_spec import TargetSpec
from eyas.contract.spec.tensor_names import NameStyle, stored_name
from eyas.diagnostic import Diagnostic

TORCH_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
# what an engine taps without ids: contract/engines/loading/aux_capture.py
_NO_IDS = (
    "no aux layer ids are written, the draft names none: an engine taps the default of the target's depth N"
    " (boundaries 2, N/2, N - 3), as for this draft; with --target they are written out"
)
# config classes of transformers and vLLM that an MLA draft can name
_MLA_MODEL_TYPES = ("deepseek_v2", "deepseek_v3", "kimi_k2")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatStyle:
    """How a one-level format is written.

    Attributes:
        names: spelling of tensor names.
        t2d: stored, or left to be derived from d2t.
        embedding: `keep` = as the draft has it; `want` = the target's is copied in when the draft has none.
        identity_map: d2t and t2d are stored also when draft and target vocabulary are the same.
        nested_ids, top_ids: where the aux layer ids are written.
        output_bias: with attention_bias the reader also builds a bias on o_proj and would leave it uninitialised.
    """

    limits: FormatLimits
    names: NameStyle
    gqa_architecture: str
    mla_architecture: str = "Eagle3DeepseekV2ForCausalLM"
    t2d: Literal["keep", "never"] = "keep"
    embedding: Literal["keep", "want"] = "keep"
    identity_map: bool = True
    nested_ids: Convention | Literal["sglang"] | None = "sglang"
    top_ids: bool = True
    output_bias: bool = False
    container: Literal["safetensors", "bin"] = "safetensors"


def torch_dtype(spec: DraftSpec) -> str:
    """The commonest float dtype of the weights, in torch's words; bfloat16 when there is none."""
    counts = Counter(info.dtype for info in spec.tensors.values() if info.dtype in TORCH_DTYPES)
    return TORCH_DTYPES[counts.most_common(1)[0][0]] if counts else "bfloat16"


def layer_config(spec: DraftSpec, model_type: str) -> dict[str, Any]:
    """The keys that describe the decoder layer: sizes, RoPE in both spellings, biases, window."""
    config: dict[str, Any] = {
        "model_type": model_type,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "rms_norm_eps": spec.rms_norm_eps,
        "hidden_act": spec.activation,
        "max_position_embeddings": spec.max_position_embeddings,
        **write_rope(spec.rope),
        "attention_bias": spec.attention_bias,
        "mlp_bias": spec.mlp_bias,
    }
    if spec.mla is not None:
        config.update(asdict(spec.mla))
    if spec.sliding_window is not None:
        config["sliding_window"] = spec.sliding_window
        config["use_sliding_window"] = True
        config["layer_types"] = list(spec.layer_types) or ["sliding_attention"] * spec.num_layers
    if spec.quantization is not None:
        config["quantization_config"] = dict(spec.quantization)
    return config


def switch_config(spec: DraftSpec) -> dict[str, Any]:
    """The draft's own switches, every one explicit."""
    config: dict[str, Any] = {
        # null: the head is the target's
        "draft_vocab_size": None if spec.head == "target" else spec.draft_vocab_size,
        "norm_before_residual": spec.residual == "post-norm",
        "norm_before_fc": spec.aux_norm == "over-concat",
        "fc_norm": spec.aux_norm == "per-state",
        "norm_output": spec.feedback == "post-norm",
        "tie_word_embeddings": spec.head == "tied",
        "num_aux_hidden_states": spec.num_aux,
    }
    if spec.target_hidden_size != spec.hidden_size:
        # SGLang and vLLM take a null here for a width
        config["target_hidden_size"] = spec.target_hidden_size
    return config


def write_flat(
    spec: DraftSpec, target: TargetSpec | None, style: FlatStyle, extra: Mapping[str, Any] | None = None
) -> Written:
    """`spec` in a one-level format.

    Args:
        target: decides the convention of nested layer ids (SGLang reads them by target class).
        extra: keys that only this format has; keys with the value None replace nothing and are left out.
    """
    lost = losses(spec, style.limits)
    fixed = _fixed_boundaries(spec, target, style.limits.format) if style.limits.fixed_aux else ()
    is_mla = spec.draft_class == "mla"
    eagle_config, more_losses, notes = _eagle_config(spec, target, style)
    config: dict[str, Any] = {
        "architectures": [style.mla_architecture if is_mla else style.gqa_architecture],
        **layer_config(spec, model_type_of(spec)),
        **switch_config(spec),
        "bias": spec.fc_bias,
        "torch_dtype": torch_dtype(spec),
        **spec.token_ids,
    }
    if spec.aux_boundaries is None and (style.top_ids or style.nested_ids):
        notes.append(_NO_IDS)
    if style.top_ids and spec.aux_boundaries is not None:
        ids = LayerIds.of_boundaries(spec.aux_boundaries, "boundary")
        config["eagle_aux_hidden_state_layer_ids"] = list(ids.ids)
    if eagle_config:
        config["eagle_config"] = eagle_config
    _without_lost(config, lost)
    config.update({key: value for key, value in (extra or {}).items() if value is not None})
    dropped = dropped_by(spec, lost)
    names = stored_names(spec, style.names, dropped, t2d=style.t2d, identity_map=style.identity_map)
    derived = {"t2d": "d2t"} if "t2d" in names and "t2d" not in spec.tensors else {}
    if style.output_bias:
        zeros = zero_output_biases(spec, style.names)
        names.update(zeros)
        derived.update(dict.fromkeys(zeros, "zeros"))
    if style.embedding == "want" and spec.embedding == "target":
        derived["embed_tokens.weight"] = "target"
    return Written(
        config=config,
        names=names,
        derived=derived,
        dropped=_dropped(spec, names, dropped, style),
        losses=(*lost, *more_losses, *fixed),
        container=style.container,
        notes=tuple(notes),
    )


def _fixed_boundaries(spec: DraftSpec, target: TargetSpec | None, format_name: str) -> tuple[Diagnostic, ...]:
    """The loss of a format without layer ids, whose reader always taps the default boundaries."""
    layers = target.num_layers if target else (spec.target or {}).get("num_layers")
    if spec.aux_boundaries is None or (isinstance(layers, int) and spec.aux_boundaries == default_boundaries(layers)):
        return ()
    known = (
        f"those of this target are {list(default_boundaries(layers))}" if isinstance(layers, int) else "unknown here"
    )
    taps = f"has no layer ids and taps the default boundaries, {known}"
    what = f"{format_name} {taps}; the draft's are {list(spec.aux_boundaries)}"
    needs_target = target is None and not isinstance(layers, int)
    return (loss("loss-aux-boundaries", "aux_boundaries", what, needs_target=needs_target),)


def model_type_of(spec: DraftSpec) -> str:
    """A model type whose config class every engine knows."""
    if spec.draft_class == "mla":
        return spec.model_type if spec.model_type in _MLA_MODEL_TYPES else "deepseek_v3"
    return "qwen3" if spec.qk_norm else "llama"


def stored_names(
    spec: DraftSpec, style: NameStyle, dropped: Mapping[str, str], *, t2d: str, identity_map: bool
) -> dict[str, str]:
    """Canonical name -> name in `style` of every written tensor, with `t2d` if it is wanted and can be derived."""
    names = {name: stored_name(name, style) for name in spec.tensors if name not in dropped}
    if t2d == "never":
        names.pop("t2d", None)
    elif "d2t" in names and spec.has_vocab_map:
        names["t2d"] = "t2d"
    if not spec.has_vocab_map and not identity_map:
        names.pop("d2t", None)
        names.pop("t2d", None)
    return names


def zero_output_biases(spec: DraftSpec, style: NameStyle) -> dict[str, str]:
    """Canonical -> stored name of the o_proj biases that a reader builds for attention_bias and the draft has not."""
    if not spec.attention_bias:
        return {}
    wanted = [f"layers.{layer}.self_attn.o_proj.bias" for layer in range(spec.num_layers)]
    return {name: stored_name(name, style) for name in wanted if name not in spec.tensors}


def _dropped(spec: DraftSpec, names: Mapping[str, str], lost: Mapping[str, str], style: FlatStyle) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in spec.tensors:
        if name in lost:
            found[name] = lost[name]
        elif name == "t2d" and name not in names and spec.has_vocab_map:
            found[name] = f"{style.limits.format} stores none; it follows from d2t"
        elif name not in names:
            found[name] = "the identity map: draft and target vocabulary are the same"
    return found


def _eagle_config(
    spec: DraftSpec, target: TargetSpec | None, style: FlatStyle
) -> tuple[dict[str, Any], list[Diagnostic], list[str]]:
    if spec.aux_boundaries is None or style.nested_ids is None:
        return {}, [], []
    convention: Convention = "boundary"
    if style.nested_ids == "sglang":
        target_type = target.text_model_type if target else None
        convention = sglang_convention(target_type, is_mla=spec.draft_class == "mla")
    else:
        convention = style.nested_ids
    layers = target.num_layers if target else None
    try:
        ids = LayerIds.of_boundaries(spec.aux_boundaries, convention, layers)
    except LayerIdsUnwritable as error:
        return {}, [loss("loss-aux-boundaries", "aux_boundaries", error.what)], []
    notes = []
    if convention == "first-is-1" and ids.ids == spec.aux_boundaries:
        notes.append(
            f"eagle_config ids {list(ids.ids)} are boundaries: SGLang before 0.5.13 adds 1 and would tap other layers"
        )
    keys = {
        "use_aux_hidden_state": True,
        "eagle_aux_hidden_state_layer_ids": list(ids.ids),
        "norm_before_fc": spec.aux_norm == "over-concat",
    }
    return keys, [], notes


def _without_lost(config: dict[str, Any], lost: tuple[Diagnostic, ...]) -> None:
    """The written config describes what is written, not what the source was."""
    off = {
        "loss-residual": ("norm_before_residual", False),
        "loss-feedback": ("norm_output", False),
        "loss-attention-bias": ("attention_bias", False),
        "loss-mlp-bias": ("mlp_bias", False),
        "loss-fc-bias": ("bias", False),
    }
    codes = {one.code for one in lost}
    for code, (key, value) in off.items():
        if code in codes:
            config[key] = value
    if "loss-aux-norm" in codes:
        config.update({"norm_before_fc": False, "fc_norm": False})
        if "eagle_config" in config:
            config["eagle_config"]["norm_before_fc"] = False
    if "loss-qk-norm" in codes:
        config["model_type"] = "llama"
    if "loss-sliding-window" in codes:
        for key in ("sliding_window", "use_sliding_window", "layer_types"):
            config.pop(key, None)
    if "loss-rope" in codes:
        config["rope_scaling"] = None
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": config["rope_theta"]}
