"""The parameters that a draft class builds from a config, before any weight is read: name, shape, first content.

Shape letters: H draft hidden, Ht target hidden, A aux states, D draft vocabulary, V vocabulary, I MLP width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eyas.contract.engines.loading.ledger import ParameterState
from eyas.contract.engines.loading.load_rules import LoadRules
from eyas.contract.engines.loading.seen_config import SeenConfig

# How a loader fits a tensor into a parameter:
# exact = shapes must be equal; rows / columns = sharded there: too long is cut, too short padded or a crash;
# vocabulary = rows must be equal, columns too; joined = the two A projections of MLA, joined first, then exact.
Fit = Literal["exact", "rows", "columns", "vocabulary", "joined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One runtime parameter.

    Attributes:
        initial: what it holds when nothing is loaded.
        shards: (name in checkpoints, rows) of the parts that are fused into it; () when it is loaded whole.
        pads: too short on the sharded axis is padded with zeros instead of a crash.
    """

    name: str
    shape: tuple[int, ...]
    initial: ParameterState
    fit: Fit = "exact"
    shards: tuple[tuple[str, int], ...] = ()
    pads: bool = False


def num_aux_states(rules: LoadRules, config: SeenConfig) -> int:
    """Number of aux states that fc is built for."""
    for path in rules.num_aux:
        value = config.get(path)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, list) and value:
            return len(value)
    return 3


def is_on(config: SeenConfig, paths: Sequence[str]) -> bool:
    """A switch as loaders read it: for nested-first paths the first that exists decides, else any that is true."""
    nested = [p for p in paths if "." in p]
    for path in nested:
        if config.has(path):
            return bool(config.get(path))
    return any(bool(config.get(p)) for p in paths if "." not in p)


def runtime_parameters(rules: LoadRules, config: SeenConfig) -> dict[str, Parameter]:
    """Every parameter of the draft model, by name, plus the vocabulary map under the engine's name for it."""
    hidden = config.size("hidden_size")
    found = [
        _weight("model.embed_tokens.weight", (config.size("vocab_size"), hidden), "vocabulary"),
        _norm("model.norm.weight", hidden),
    ]
    if not rules.reads_aux_switch or config.get("eagle_config.use_aux_hidden_state", True):
        found += _fusion(rules, config, hidden)
    layers = min(config.size("num_hidden_layers"), 64)
    for layer in range(min(layers, rules.max_layers) if rules.max_layers else layers):
        found += _layer(rules, config, layer)
    if not (rules.ties_head and config.ties_head):
        found.append(_weight("lm_head.weight", (config.draft_vocab, hidden), "vocabulary"))
    return {p.name: p for p in found}


def _weight(
    name: str,
    shape: tuple[int, ...],
    fit: Fit = "exact",
    shards: Sequence[tuple[str, int]] = (),
    *,
    pads: bool = False,
    initial: ParameterState = "uninitialised",
) -> Parameter:
    return Parameter(name=name, shape=shape, initial=initial, fit=fit, shards=tuple(shards), pads=pads)


def _norm(name: str, size: int) -> Parameter:
    return _weight(name, (size,), initial="ones")


def _fusion(rules: LoadRules, config: SeenConfig, hidden: int) -> list[Parameter]:
    num_aux, target_hidden = num_aux_states(rules, config), config.target_hidden
    width = num_aux * target_hidden
    found = [_weight("model.fc.weight", (hidden, width), "rows" if rules.fc_is_sharded else "exact")]
    if rules.fc_bias_key and config.get(rules.fc_bias_key):
        found.append(_weight("model.fc.bias", (hidden,)))
    if rules.input_norm_keys and is_on(config, rules.input_norm_keys):
        found.append(_norm("model.input_norm.weight", width))
    if rules.fc_norm_keys and is_on(config, rules.fc_norm_keys):
        found += [_norm(f"model.fc_norm.{i}.weight", target_hidden) for i in range(num_aux)]
    return found


def _layer(rules: LoadRules, config: SeenConfig, layer: int) -> list[Parameter]:
    at = f"model.{rules.layer_module.format(i=layer)}"
    hidden = config.size("hidden_size")
    # layers >= 1 have both norms and apply one of them
    unused = "" if layer == 0 else "input_layernorm" if rules.deep_norm == "hidden_norm" else "hidden_norm"
    norms = [
        _weight(f"{at}.{n}.weight", (hidden,), initial="unused" if n == unused else "ones")
        for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    ]
    attention = _mla if rules.kind == "mla" else _attention
    input_width = 2 * hidden if layer == 0 else hidden
    return [*norms, *attention(rules, config, f"{at}.self_attn", input_width), *_mlp(rules, config, f"{at}.mlp")]


def _mlp(rules: LoadRules, config: SeenConfig, at: str) -> list[Parameter]:
    widths = (config.size(key) or default for name, key, default in rules.mlp_widths if name == config.model_type)
    hidden, inner = config.size("hidden_size"), next(widths, config.size("intermediate_size"))
    shards, start = (("gate_proj", inner), ("up_proj", inner)), rules.bias_start
    found = [
        _weight(f"{at}.gate_up_proj.weight", (2 * inner, hidden), "rows", shards, pads=rules.pads_short),
        _weight(f"{at}.down_proj.weight", (hidden, inner), "columns", pads=rules.pads_short),
    ]
    if rules.mlp_bias_key and config.get(rules.mlp_bias_key):
        found.append(_weight(f"{at}.gate_up_proj.bias", (2 * inner,), "rows", shards, initial=start))
        found.append(_weight(f"{at}.down_proj.bias", (hidden,), initial=start))
    return found


def _attention(rules: LoadRules, config: SeenConfig, at: str, input_width: int) -> list[Parameter]:
    q, hidden = config.size("num_attention_heads") * config.head_dim, config.size("hidden_size")
    kv = config.num_kv_heads * config.head_dim
    rows, shards = q + 2 * kv, (("q_proj", q), ("k_proj", kv), ("v_proj", kv))
    found = [
        _weight(f"{at}.qkv_proj.weight", (rows, input_width), "rows", shards),
        _weight(f"{at}.o_proj.weight", (hidden, q), "columns", pads=rules.pads_short),
    ]
    if rules.qkv_bias and config.get("attention_bias"):
        found.append(_weight(f"{at}.qkv_proj.bias", (rows,), "rows", shards, initial=rules.bias_start))
    if any(config.get(key) for key in rules.o_bias_keys):
        found.append(_weight(f"{at}.o_proj.bias", (hidden,), initial=rules.bias_start))
    if rules.qk_norm:
        found += [_norm(f"{at}.{n}_norm.weight", config.head_dim) for n in "qk"]
    return found


def _mla(rules: LoadRules, config: SeenConfig, at: str, input_width: int) -> list[Parameter]:
    q_rank, kv_rank = config.size("q_lora_rank"), config.size("kv_lora_rank")
    nope, rope, value = (config.size(k) for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    heads, fused = config.size("num_attention_heads"), (q_rank + kv_rank + rope, input_width)
    shards = (("q_a_proj", q_rank), ("kv_a_proj_with_mqa", kv_rank + rope))
    output = (config.size("hidden_size"), heads * value)
    return [
        _weight(f"{at}.{rules.fused_a}.weight", fused, "joined" if rules.fuses_a_by_pair else "rows", shards),
        _norm(f"{at}.q_a_layernorm.weight", q_rank),
        _weight(f"{at}.q_b_proj.weight", (heads * (nope + rope), q_rank), "rows"),
        _norm(f"{at}.kv_a_layernorm.weight", kv_rank),
        _weight(f"{at}.kv_b_proj.weight", (heads * (nope + value), kv_rank), "rows"),
        _weight(f"{at}.o_proj.weight", output, "columns", pads=rules.pads_short),
    ]
