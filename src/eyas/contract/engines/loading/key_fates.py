"""What an engine does with each config key: reads it, ignores it, or silently lacks the switch."""

from collections.abc import Mapping
from typing import Any

from eyas.contract.engines.loading.ledger import KeyEntry
from eyas.contract.engines.loading.load_rules import LoadRules
from eyas.contract.spec.config_keys import (
    DTYPE_KEYS,
    INERT_KEYS,
    KNOWN_EAGLE_CONFIG_KEYS,
    KNOWN_KEYS,
    SPECULATORS_KEYS,
)

_SPECULATORS_READ = frozenset(
    {
        "draft_vocab_size",
        "target_hidden_size",
        "norm_before_residual",
        "norm_before_fc",
        "fc_norm",
        "norm_output",
        "eagle_aux_hidden_state_layer_ids",
        "transformer_layer_config",
        "speculators_config",
        "speculators_model_type",
    }
)


def key_fates(rules: LoadRules, config: Mapping[str, Any]) -> tuple[KeyEntry, ...]:
    """One entry per key of config.json; nested ones of eagle_config and transformer_layer_config with dots."""
    found: list[KeyEntry] = []
    is_speculators = "speculators_config" in config and not config.get("model_type")
    for key, value in config.items():
        if key == "eagle_config" and isinstance(value, Mapping):
            found += [_fate(rules, f"eagle_config.{k}", v, nested=True) for k, v in value.items()]
        elif key == "transformer_layer_config" and isinstance(value, Mapping):
            found.append(KeyEntry(key=key, fate="read"))
            found += [_layer_key(rules, k, v) for k, v in value.items()]
        elif is_speculators and key in _SPECULATORS_READ:
            found.append(KeyEntry(key=key, fate="read", remark="translated to the draft's own config"))
        elif is_speculators and key in ("tie_word_embeddings", "architectures"):
            found.append(KeyEntry(key=key, fate="inert", remark="the translation ignores it"))
        else:
            found.append(_fate(rules, key, value, nested=False))
    return tuple(found)


def _layer_key(rules: LoadRules, key: str, value: Any) -> KeyEntry:
    entry = _fate(rules, key, value, nested=False)
    return KeyEntry(key=f"transformer_layer_config.{key}", fate=entry.fate, remark=entry.remark)


def _fate(rules: LoadRules, key: str, value: Any, *, nested: bool) -> KeyEntry:
    lost = _lost_switch(rules, key, value)
    if lost:
        return KeyEntry(key=key, fate="ignored", remark=lost)
    name = key.removeprefix("eagle_config.")
    if nested:
        known = name in KNOWN_EAGLE_CONFIG_KEYS
    else:
        known = key in KNOWN_KEYS or key in SPECULATORS_KEYS
        if key in INERT_KEYS:
            return KeyEntry(key=key, fate="inert")
        if key in DTYPE_KEYS and rules.casts_to_target:
            return KeyEntry(key=key, fate="inert", remark="a draft computes in the target's dtype")
    if not known:
        return KeyEntry(key=key, fate="unknown", remark="eyas does not know what it decides")
    return KeyEntry(key=key, fate="read")


def _lost_switch(rules: LoadRules, key: str, value: Any) -> str:
    """Why a switch that is set has no effect here; "" if it has one, or if it is off."""
    if not value:
        return ""
    if key == "norm_before_residual" and not rules.reads_residual:
        return "no such switch: the residual is taken before the norm"
    if key in ("norm_output", "eagle_config.return_hidden_post_norm") and key not in rules.feedback_keys:
        return "the state before the final norm is fed back"
    if key in ("fc_norm", "use_aux_norm") and key not in rules.fc_norm_keys:
        return "the aux states are not normed one by one"
    if key in ("norm_before_fc", "eagle_config.norm_before_fc") and key not in rules.input_norm_keys:
        return "the concatenated aux states are not normed"
    if key == "attention_bias" and not rules.qkv_bias:
        return "q, k and v are built without bias"
    if key == "mlp_bias" and rules.mlp_bias_key is None:
        return "the MLP is built without bias"
    if key == "bias" and rules.fc_bias_key is None:
        return "fc is built without bias"
    return ""
