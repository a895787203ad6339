"""Rotary embedding in its two spellings: transformers 4 (`rope_theta`, `rope_scaling`) and 5 (`rope_parameters`).

Reading gives the effective `Rope`, whichever spelling; writing gives both, since SGLang and vLLM read one or the other
by version. The spelling and its defaults are known here and nowhere else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from eyas.contract.spec.draft_spec import Rope

DEFAULT_THETA = 10000.0
# of transformers 4.57 and 5.19, and the further ones of vLLM's and SGLang's get_rope
KNOWN_TYPES = frozenset({
    "default", "linear", "dynamic", "yarn", "longrope", "su", "llama3", "proportional", "ntk", "mrope", "mllama4",
    "deepseek_yarn", "deepseek_llama_scaling", "dual_chunk", "xdrope",
})  # fmt: skip
_MOST_FACTORS = 4096  # one for each pair of a head's numbers
ROPE_KEYS = frozenset({"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "rope_is_neox_style"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeReading:
    """What a config says of RoPE.

    Attributes:
        rope: the effective one.
        source: where it came from, for a person.
        conflict: the two spellings contradict each other: how; None if they do not.
    """

    rope: Rope
    source: str
    conflict: str | None = None


def read_rope(config: Mapping[str, Any], *, interleaved: bool = False) -> RopeReading:
    """The effective RoPE of `config` (the level that holds hidden_size).

    Args:
        config: config.json, or the text part of it.
        interleaved: what the model class does when `rope_is_neox_style` is absent (MLA drafts: True).
    """
    style = config.get("rope_is_neox_style")
    interleaved = (not style) if isinstance(style, bool) else interleaved
    new = _flat_parameters(config)
    old_theta, old_scaling = config.get("rope_theta"), config.get("rope_scaling")
    old_scaling = old_scaling if isinstance(old_scaling, Mapping) else None
    share = _number((new or {}).get("partial_rotary_factor"), config.get("partial_rotary_factor"), 1.0)
    if new is not None:
        theta = _number(new.get("rope_theta"), old_theta, DEFAULT_THETA)
        rope = Rope(theta=theta, scaling=_scaling(new), partial_rotary_factor=share, interleaved=interleaved)
        return RopeReading(
            rope=rope,
            source="config.json: rope_parameters",
            conflict=_conflict(rope, old_theta, old_scaling),
        )
    theta = _number((old_scaling or {}).get("rope_theta"), old_theta, DEFAULT_THETA)
    rope = Rope(theta=theta, scaling=_scaling(old_scaling or {}), partial_rotary_factor=share, interleaved=interleaved)
    # without any key, engines take theta 10000 in silence
    has_none = old_theta is None and old_scaling is None
    source = "no RoPE key in config.json: theta 10000" if has_none else "config.json: rope_theta, rope_scaling"
    return RopeReading(rope=rope, source=source)


def rope_faults(config: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    """(key, value, what it must be) of every RoPE value of the wrong type or outside its range."""
    levels: dict[str, Mapping[str, Any]] = {"": config}
    for name in ("rope_scaling", "rope_parameters"):
        found = _flat_parameters({"rope_parameters": config.get(name)})
        if found is not None:
            levels[f"{name}."] = found
        elif config.get(name) is not None and not isinstance(config[name], Mapping):
            return [(name, config[name], "an object")]
    outside = [
        (f"{prefix}{key}", level[key], wanted)
        for prefix, level in levels.items()
        for key, (is_right, wanted) in _RANGES.items()
        if level.get(key) is not None and (prefix or key in _OUTER_KEYS) and not is_right(level[key])
    ]
    return outside + [(f"{prefix}{key}", None, _RANGES[key][1]) for prefix, key in _lacking(levels)]


def _lacking(levels: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(level, key) of what the kind of scaling cannot do without: engines raise KeyError."""
    kinds = {prefix: _scaling(level) for prefix, level in levels.items() if prefix}
    return [
        (prefix, key)
        for prefix, scaling in kinds.items()
        if scaling is not None and isinstance(scaling["rope_type"], str)
        for key in _NEEDED.get(scaling["rope_type"], ())
        if key not in scaling and not (key == "factor" and "alpha" in scaling)
    ]


def _is_number(value: Any, largest: float = 1e30) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= largest


def _is_list_of(kind: Callable[[Any], bool], value: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) <= _MOST_FACTORS and all(map(kind, value))


_TYPE = (lambda value: isinstance(value, str) and value in KNOWN_TYPES, f"one of {', '.join(sorted(KNOWN_TYPES))}")
_POSITIVE = (_is_number, "a number above 0")
_NOT_NEGATIVE = (
    lambda value: _is_number(value) or (type(value) in (int, float) and value == 0),
    "a number, 0 or above",
)
_FLAG = (lambda value: isinstance(value, bool), "true or false")
_FACTORS = (partial(_is_list_of, _is_number), "a list of numbers above 0")
_RANGES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "rope_theta": _POSITIVE,
    "partial_rotary_factor": (lambda value: _is_number(value, 1), "a number above 0, at most 1"),
    "rope_type": _TYPE,
    "type": _TYPE,
    **dict.fromkeys(("factor", "beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor"), _POSITIVE),
    **dict.fromkeys(("original_max_position_embeddings", "attention_factor", "alpha", "short_mscale"), _POSITIVE),
    **dict.fromkeys(("long_mscale", "extrapolation_factor"), _POSITIVE),
    **dict.fromkeys(("mscale", "mscale_all_dim", "attn_factor"), _NOT_NEGATIVE),
    **dict.fromkeys(("short_factor", "long_factor"), _FACTORS),
    "mrope_section": (
        partial(_is_list_of, lambda value: type(value) is int and 0 <= value <= _MOST_FACTORS),
        "a list of whole numbers",
    ),
    **dict.fromkeys(("truncate", "mrope_interleaved", "rope_is_neox_style"), _FLAG),
}
_OUTER_KEYS = ROPE_KEYS | {"original_max_position_embeddings"}
_NEEDED = {
    **dict.fromkeys(("linear", "dynamic", "yarn", "deepseek_yarn"), ("factor",)),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    **dict.fromkeys(("longrope", "su"), ("short_factor", "long_factor")),
}


def write_rope(rope: Rope) -> dict[str, Any]:
    """Config keys for `rope` in both spellings, every one explicit."""
    scaling = dict(rope.scaling) if rope.scaling else None
    if scaling is not None:
        # readers before transformers 4.45 want `type`
        scaling = {**scaling, "type": scaling["rope_type"]}
    keys: dict[str, Any] = {
        "rope_theta": rope.theta,
        "rope_scaling": scaling,
        "rope_parameters": {"rope_type": "default", **(rope.scaling or {}), "rope_theta": rope.theta},
    }
    if rope.partial_rotary_factor != 1.0:
        keys["partial_rotary_factor"] = rope.partial_rotary_factor
        keys["rope_parameters"]["partial_rotary_factor"] = rope.partial_rotary_factor
    return keys


def _flat_parameters(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    parameters = config.get("rope_parameters")
    if not isinstance(parameters, Mapping):
        return None
    if parameters and all(isinstance(value, Mapping) for value in parameters.values()):
        # one entry per kind of layer (Gemma 3): the full-attention one decides
        full = parameters.get("full_attention", next(iter(parameters.values())))
        return full if isinstance(full, Mapping) else None
    return parameters


def _scaling(parameters: Mapping[str, Any]) -> Mapping[str, Any] | None:
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "default" and not parameters.get("mrope_section"):
        return None
    rest = {
        key: value
        for key, value in parameters.items()
        if key not in ("rope_theta", "rope_type", "type", "partial_rotary_factor") and value is not None
    }
    return {"rope_type": kind, **rest}


def _number(*values: Any) -> float:
    for value in values:
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30:
            return float(value)
    return DEFAULT_THETA


def _conflict(rope: Rope, theta: Any, scaling: Mapping[str, Any] | None) -> str | None:
    if isinstance(theta, int | float) and float(theta) != rope.theta:
        return f"rope_parameters says theta {rope.theta:g}, rope_theta says {theta:g}"
    if scaling is None:
        return None
    old = _scaling(scaling)
    if old != rope.scaling:
        return f"rope_parameters says {rope.scaling}, rope_scaling says {old}"
    return None
