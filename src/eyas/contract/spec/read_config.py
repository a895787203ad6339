"""Sizes and switches out of a draft's config, completed from its tensors. Shared by all dialects that read."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eyas.contract.files.checkpoint import TensorInfo
from eyas.contract.spec.config_keys import (
    EAGLE_CONFIG_KEYS,
    FIXED_VALUES,
    INERT_KEYS,
    KNOWN_EAGLE_CONFIG_KEYS,
    KNOWN_KEYS,
    TOKEN_KEYS,
    type_faults,
)
from eyas.contract.spec.config_reader import ConfigReader
from eyas.contract.spec.draft_spec import HEAD_ROWS, Mla
from eyas.contract.spec.rope import read_rope, rope_faults
from eyas.contract.spec.target_spec import TargetSpec
from eyas.diagnostic import Diagnostic, finding

_MAX_LAYERS = 1024  # several times those of the deepest target: a wrong number must not cost minutes
_MAX_VOCAB = 1 << 22  # 20 times the largest known, and what a vocabulary map may hold
_MAX_WIDTH = 1 << 20
_MAX_UNKNOWN = 50  # unknown keys that are named one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSource:
    """Where a dialect keeps things.

    Attributes:
        sizes: the level with hidden_size and the like.
        switches: the level with the draft's own keys (the same one, except in speculators).
        residual_default: value of norm_before_residual when it is absent.
        known: keys that this dialect adds to the common ones.
        size_level, switch_level: what to call the levels.
    """

    sizes: Mapping[str, Any]
    switches: Mapping[str, Any]
    residual_default: bool = False
    known: frozenset[str] = frozenset()
    size_level: str = "config.json"
    switch_level: str = "config.json"


def read_fields(
    source: ConfigSource, tensors: Mapping[str, TensorInfo], target: TargetSpec | None, where: str
) -> tuple[dict[str, Any], list[Diagnostic]]:
    """Fields of `DraftSpec` (all but tensors, names, aux boundaries, dialect) and what is odd about the config.

    Args:
        tensors: by canonical name.

    Raises:
        DraftConfigIncomplete: a size that neither config nor tensors tell.
    """
    sizes = ConfigReader(source.sizes, where, source.size_level)
    switches = ConfigReader(source.switches, where, source.switch_level)
    switches.findings, switches.provenance = sizes.findings, sizes.provenance
    fields = _sizes(sizes, tensors, target)
    fields.update(_layer_switches(sizes, tensors, fields))
    fields.update(_draft_switches(switches, tensors, target, fields, source.residual_default))
    fields["token_ids"] = {
        key: level[key] for key in TOKEN_KEYS for level in (source.sizes, source.switches) if level.get(key) is not None
    }
    sizes.findings.extend(_unknown_keys(source, where))
    fields["provenance"] = sizes.provenance
    return fields, sizes.findings


def _rows(tensors: Mapping[str, TensorInfo], name: str, dimension: int = 0) -> int | None:
    info = tensors.get(name)
    return info.shape[dimension] if info is not None and len(info.shape) > dimension else None


def _sizes(reader: ConfigReader, tensors: Mapping[str, TensorInfo], target: TargetSpec | None) -> dict[str, Any]:
    hidden = reader.size(
        "hidden_size", "hidden_size", _rows(tensors, "norm.weight"), "length of norm.weight", largest=_MAX_WIDTH
    )
    heads = reader.size("num_attention_heads", "num_heads", None, "", largest=_MAX_WIDTH)
    layers = {name.split(".")[1] for name in tensors if name.startswith("layers.")}
    vocab = _rows(tensors, "embed_tokens.weight") or _rows(tensors, "t2d") or (target.vocab_size if target else None)
    inner = _rows(tensors, "layers.0.mlp.gate_proj.weight")
    return {
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": reader.size("num_key_value_heads", "num_kv_heads", heads, "as many as attention heads"),
        "head_dim": reader.size("head_dim", "head_dim", max(1, hidden // heads), "hidden_size / num_attention_heads"),
        "intermediate_size": reader.size("intermediate_size", "intermediate_size", inner, "rows of gate_proj"),
        "num_layers": reader.size(
            "num_hidden_layers", "num_layers", len(layers) or None, "layers in the checkpoint", largest=_MAX_LAYERS
        ),
        "vocab_size": reader.size(
            "vocab_size", "vocab_size", vocab, "rows of embed_tokens, length of t2d or target", largest=_MAX_VOCAB
        ),
        "rms_norm_eps": reader.share("rms_norm_eps", "rms_norm_eps", 1e-6, "transformers' default 1e-6"),
        "activation": reader.text("hidden_act", "activation", "silu"),
        "max_position_embeddings": reader.size(
            "max_position_embeddings", "max_position_embeddings", 2048, "transformers' default 2048"
        ),
        "model_type": reader.text("model_type", "model_type", "llama"),
    }


def _layer_switches(
    reader: ConfigReader, tensors: Mapping[str, TensorInfo], fields: Mapping[str, Any]
) -> dict[str, Any]:
    is_mla = any("kv_a_proj_with_mqa" in name for name in tensors) or reader.config.get("kv_lora_rank") is not None
    rope = read_rope(reader.config, interleaved=is_mla)
    reader.provenance["rope"] = rope.source
    for key, value, wanted in (*rope_faults(reader.config), *type_faults(reader.config)):
        reader.wrong(key, value, wanted)
    if rope.conflict:
        why = f"{rope.conflict}; engines read one or the other by version"
        what, do = "the two spellings of RoPE disagree", "write the value that the draft was trained with in both"
        reader.findings.append(
            finding("rope-spellings-disagree", "error", what, f"{reader.where}: {reader.level}", why, do)
        )
    quantization = reader.config.get("quantization_config", reader.config.get("compression_config"))
    sliding, layer_types = _sliding(reader, int(fields["num_layers"]))
    return {
        "draft_class": "mla" if is_mla else "gqa",
        "mla": _mla(reader, fields) if is_mla else None,
        "rope": rope.rope,
        "attention_bias": reader.flag("attention_bias", "attention_bias", False),
        "mlp_bias": reader.flag("mlp_bias", "mlp_bias", False),
        "fc_bias": reader.flag("bias", "fc_bias", False),
        "qk_norm": _qk_norm(reader, tensors),
        "sliding_window": sliding,
        "layer_types": layer_types,
        "quantization": quantization if isinstance(quantization, Mapping) else None,
    }


def _qk_norm(reader: ConfigReader, tensors: Mapping[str, TensorInfo]) -> bool:
    if reader.config.get("model_type") == "qwen3":
        reader.provenance["qk_norm"] = f"{reader.level}: model_type qwen3"
        return True
    found = any(name.endswith(("q_norm.weight", "k_norm.weight")) for name in tensors)
    architectures = reader.config.get("architectures")
    reader.provenance["qk_norm"] = "q_norm and k_norm are in the checkpoint" if found else "no q_norm in the checkpoint"
    return found or (isinstance(architectures, list) and architectures[:1] == ["Eagle3Qwen3ForCausalLM"])


def _mla(reader: ConfigReader, fields: Mapping[str, Any]) -> Mla:
    return Mla(
        q_lora_rank=reader.optional_size("q_lora_rank", "mla"),
        kv_lora_rank=reader.size("kv_lora_rank", "mla", None, ""),
        qk_nope_head_dim=reader.size("qk_nope_head_dim", "mla", None, ""),
        qk_rope_head_dim=reader.size("qk_rope_head_dim", "mla", None, ""),
        v_head_dim=reader.size("v_head_dim", "mla", int(fields["head_dim"]), "head_dim"),
    )


def _sliding(reader: ConfigReader, num_layers: int) -> tuple[int | None, tuple[str, ...]]:
    window = reader.optional_size("sliding_window", "sliding_window")
    kinds = reader.config.get("layer_types")
    if isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds):
        types = tuple(kinds[:num_layers])
        slides = "sliding_attention" in types
    else:
        # Qwen's spelling: layers from max_window_layers on slide
        slides = reader.config.get("use_sliding_window") is True and window is not None
        first = reader.config.get("max_window_layers")
        first = first if isinstance(first, int) else 0
        types = tuple("sliding_attention" if slides and i >= first else "full_attention" for i in range(num_layers))
        slides = "sliding_attention" in types
    return (window, types) if slides and window is not None else (None, ())


def _draft_switches(
    reader: ConfigReader,
    tensors: Mapping[str, TensorInfo],
    target: TargetSpec | None,
    fields: Mapping[str, Any],
    residual_default: bool,
) -> dict[str, Any]:
    eagle = reader.level_below("eagle_config")
    hidden, vocab = int(fields["hidden_size"]), int(fields["vocab_size"])
    over_concat = eagle.flag("norm_before_fc", "aux_norm", reader.flag("norm_before_fc", "aux_norm", False))
    per_state = reader.flag("fc_norm", "aux_norm", False) or reader.flag("use_aux_norm", "aux_norm", False)
    post = eagle.flag("return_hidden_post_norm", "feedback", reader.flag("norm_output", "feedback", False))
    residual = reader.flag("norm_before_residual", "residual", residual_default)
    draft_vocab = reader.optional_size("draft_vocab_size", "draft_vocab_size")
    if draft_vocab is None:
        draft_vocab = _rows(tensors, "lm_head.weight") or vocab
        reader.provenance["draft_vocab_size"] = HEAD_ROWS if "lm_head.weight" in tensors else "vocab_size"
    tied = reader.flag("tie_word_embeddings", "head", False)
    target_hidden = reader.optional_size("target_hidden_size", "target_hidden_size") or _target_hidden(
        tensors, target, hidden
    )
    reader.provenance.setdefault("target_hidden_size", "target" if target_hidden != hidden else "hidden_size")
    if "lm_head.weight" in tensors or any(name.startswith("lm_head.") for name in tensors):
        head = "own"
    else:
        head = "tied" if tied else "target"
    return {
        "target_hidden_size": target_hidden,
        "draft_vocab_size": draft_vocab,
        "residual": "post-norm" if residual else "pre-norm",
        "aux_norm": "per-state" if per_state else "over-concat" if over_concat else "none",
        "feedback": "post-norm" if post else "pre-norm",
        "embedding": "own" if "embed_tokens.weight" in tensors else "target",
        "head": head,
    }


def _target_hidden(tensors: Mapping[str, TensorInfo], target: TargetSpec | None, hidden: int) -> int:
    width = _rows(tensors, "fc.weight", 1)
    if target is None or width is None or target.hidden_size == hidden:
        return hidden
    # without the key, engines size fc by hidden_size; believe the tensor only if the target's width fits and ours not
    return target.hidden_size if width % target.hidden_size == 0 and width % hidden else hidden


def _unknown_keys(source: ConfigSource, where: str) -> list[Diagnostic]:
    findings: list[Diagnostic] = []
    inert: list[str] = []
    levels = [(source.sizes, source.size_level)]
    if source.switches is not source.sizes:
        levels.append((source.switches, source.switch_level))
    for level, label in levels:
        known = KNOWN_KEYS | source.known
        inert += [key for key in level if key in INERT_KEYS]
        findings += _all_unknown([key for key in level if key not in known], f"{where}: {label}", known)
        findings += _fixed(level, "", f"{where}: {label}")
        below = level.get("eagle_config")
        if isinstance(below, Mapping):
            place = f"{where}: {label}: eagle_config"
            findings += _all_unknown([k for k in below if k not in KNOWN_EAGLE_CONFIG_KEYS], place, EAGLE_CONFIG_KEYS)
            findings += _fixed(below, "eagle_config.", place)
    if inert:
        what = f"{len(inert)} config keys have no effect on the draft"
        findings.append(finding("config-key-inert", "note", what, where, ", ".join(sorted(set(inert)))))
    return findings


def _fixed(level: Mapping[str, Any], prefix: str, where: str) -> list[Diagnostic]:
    return [
        finding(
            "config-switch-unsupported",
            "error",
            f"{key} is {str(level[key])[:40]}",
            where,
            f"eyas knows the function of a draft only where {key} is {FIXED_VALUES[prefix + key][0]}",
            f"correct {key} if the draft was not trained so",
            items=(prefix + key,),
        )
        for key in level
        if prefix + key in FIXED_VALUES and level[key] not in FIXED_VALUES[prefix + key]
    ]


def _all_unknown(keys: Sequence[str], where: str, known: Iterable[str]) -> list[Diagnostic]:
    found = [_unknown(key, where, known) for key in keys[:_MAX_UNKNOWN]]
    if len(keys) > _MAX_UNKNOWN:
        what = f"{len(keys) - _MAX_UNKNOWN} more unknown config keys, from {keys[_MAX_UNKNOWN][:60]!r} on"
        why = "eyas knows none of them; a draft's config has some 40 keys"
        found.append(finding("config-key-unknown", "error", what, where, why, "check that it is the right file"))
    return found


def _unknown(key: str, where: str, known: Iterable[str]) -> Diagnostic:
    near = difflib.get_close_matches(key, sorted(known), n=1)
    what = f"unknown config key {key[:60]!r}"
    why = "eyas does not know this key; the draft may behave differently from what eyas and the engine assume"
    do = f"rename it if you meant {near[0]!r}" if near else f"remove {key[:60]!r} if it decides nothing, or report it"
    return finding("config-key-unknown", "error", what, where, why, do, items=(key, *near))
