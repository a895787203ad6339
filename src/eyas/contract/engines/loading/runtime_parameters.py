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
    hidden, target_hidden = config.size("hidden_size"), config.target_hidden
    width = num_aux_states(rules, config) * target_hidden
    found = [
        Parameter(
            name="model.embed_tokens.weight",
            shape=(config.size("vocab_size"), hidden),
            initial="uninitialised",
            fit="vocabulary",
        ),
        _norm("model.norm.weight", hidden),
    ]
    if not rules.reads_aux_switch or config.get("eagle_config.use_aux_hidden_state", True):
        found += _fusion(rules, config, hidden, target_hidden, width)
    for layer in range(_layers(rules, config)):
        found += _layer(rules, config, layer)
    if not (rules.ties_head and config.ties_head):
        found.append(
            Parameter(
                name="lm_head.weight", shape=(config.draft_vocab, hidden), initial="uninitialised", fit="vocabulary"
            )
        )
    return {p.name: p for p in found}


def _layers(rules: LoadRules, config: SeenConfig) -> int:
    wanted = min(config.size("num_hidden_layers"), 64)
    return min(wanted, rules.max_layers) if rules.max_layers else wanted


def _norm(name: str, size: int) -> Parameter:
    return Parameter(name=name, shape=(size,), initial="ones")


def _fusion(rules: LoadRules, config: SeenConfig, hidden: int, target_hidden: int, width: int) -> list[Parameter]:
    found = [
        Parameter(
            name="model.fc.weight",
            shape=(hidden, width),
            initial="uninitialised",
            fit="rows" if rules.fc_is_sharded else "exact",
        )
    ]
    if rules.fc_bias_key and config.get(rules.fc_bias_key):
        found.append(Parameter(name="model.fc.bias", shape=(hidden,), initial="uninitialised"))
    if rules.input_norm_keys and is_on(config, rules.input_norm_keys):
        found.append(_norm("model.input_norm.weight", width))
    if rules.fc_norm_keys and is_on(config, rules.fc_norm_keys):
        found += [_norm(f"model.fc_norm.{i}.weight", target_hidden) for i in range(num_aux_states(rules, config))]
    return found


def _layer(rules: LoadRules, config: SeenConfig, layer: int) -> list[Parameter]:
    at = f"model.{rules.layer_module.format(i=layer)}"
    hidden, inner = config.size("hidden_size"), _mlp_width(rules, config)
    input_width = 2 * hidden if layer == 0 else hidden
    # layers >= 1 have both norms and apply one of them
    unused = "" if layer == 0 else "input_layernorm" if rules.deep_norm == "hidden_norm" else "hidden_norm"
    norms = [
        Parameter(name=f"{at}.{n}.weight", shape=(hidden,), initial="unused" if n == unused else "ones")
        for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    ]
    attention = _mla if rules.kind == "mla" else _attention
    return [*norms, *attention(rules, config, f"{at}.self_attn", input_width), *_mlp(rules, config, at, hidden, inner)]


def _mlp_width(rules: LoadRules, config: SeenConfig) -> int:
    found = (config.size(key) or default for name, key, default in rules.mlp_widths if name == config.model_type)
    return next(found, config.size("intermediate_size"))


def _mlp(rules: LoadRules, config: SeenConfig, at: str, hidden: int, inner: int) -> list[Parameter]:
    shards = (("gate_proj", inner), ("up_proj", inner))
    found = [
        Parameter(
            name=f"{at}.mlp.gate_up_proj.weight",
            shape=(2 * inner, hidden),
            initial="uninitialised",
            fit="rows",
            shards=shards,
            pads=rules.pads_short,
        ),
        Parameter(
            name=f"{at}.mlp.down_proj.weight",
            shape=(hidden, inner),
            initial="uninitialised",
            fit="columns",
            pads=rules.pads_short,
        ),
    ]
    if rules.mlp_bias_key and config.get(rules.mlp_bias_key):
        found += [
            Parameter(
                name=f"{at}.mlp.gate_up_proj.bias",
                shape=(2 * inner,),
                initial=rules.bias_start,
                fit="rows",
                shards=shards,
            ),
            Parameter(name=f"{at}.mlp.down_proj.bias", shape=(hidden,), initial=rules.bias_start),
        ]
    return found


def _attention(rules: LoadRules, config: SeenConfig, at: str, input_width: int) -> list[Parameter]:
    q = config.size("num_attention_heads") * config.head_dim
    kv = config.num_kv_heads * config.head_dim
    shards = (("q_proj", q), ("k_proj", kv), ("v_proj", kv))
    found = [
        Parameter(
            name=f"{at}.qkv_proj.weight",
            shape=(q + 2 * kv, input_width),
            initial="uninitialised",
            fit="rows",
            shards=shards,
        ),
        Parameter(
            name=f"{at}.o_proj.weight",
            shape=(config.size("hidden_size"), q),
            initial="uninitialised",
            fit="columns",
            pads=rules.pads_short,
        ),
    ]
    if rules.qkv_bias and config.get("attention_bias"):
        found.append(
            Parameter(
                name=f"{at}.qkv_proj.bias", shape=(q + 2 * kv,), initial=rules.bias_start, fit="rows", shards=shards
            )
        )
    if any(config.get(key) for key in rules.o_bias_keys):
        found.append(Parameter(name=f"{at}.o_proj.bias", shape=(config.size("hidden_size"),), initial=rules.bias_start))
    if rules.qk_norm:
        found += [_norm(f"{at}.{n}_norm.weight", config.head_dim) for n in "qk"]
    return found


def _mla(rules: LoadRules, config: SeenConfig, at: str, input_width: int) -> list[Parameter]:
    q_rank, kv_rank = config.size("q_lora_rank"), config.size("kv_lora_rank")
    nope, rope, value = (config.size(k) for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    heads = config.size("num_attention_heads")

    def linear(name: str, rows: int, columns: int, fit: Fit, pads: bool = False) -> Parameter:
        shape = (rows, columns)
        return Parameter(name=f"{at}.{name}.weight", shape=shape, initial="uninitialised", fit=fit, pads=pads)

    return [
        Parameter(
            name=f"{at}.{rules.fused_a}.weight",
            shape=(q_rank + kv_rank + rope, input_width),
            initial="uninitialised",
            fit="joined" if rules.fuses_a_by_pair else "rows",
            shards=(("q_a_proj", q_rank), ("kv_a_proj_with_mqa", kv_rank + rope)),
        ),
        _norm(f"{at}.q_a_layernorm.weight", q_rank),
        linear("q_b_proj", heads * (nope + rope), q_rank, "rows"),
        _norm(f"{at}.kv_a_layernorm.weight", kv_rank),
        linear("kv_b_proj", heads * (nope + value), kv_rank, "rows"),
        linear("o_proj", config.size("hidden_size"), heads * value, "columns", rules.pads_short),
    ]
