"""A loader's pass over a checkpoint: each tensor to its parameter, by name and shape, as the rules say. No verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from eyas.contract.engines.loading.ledger import TensorEntry
from eyas.contract.engines.loading.load_rules import LoadRules
from eyas.contract.engines.loading.runtime_parameters import Parameter
from eyas.contract.engines.loading.seen_config import PARALLEL, SeenConfig
from eyas.contract.files.checkpoint import Checkpoint, TensorInfo
from eyas.contract.spec.tensor_names import SCALE_SUFFIXES

_STACKED = {
    ".q_proj": ".qkv_proj",
    ".k_proj": ".qkv_proj",
    ".v_proj": ".qkv_proj",
    ".gate_proj": ".gate_up_proj",
    ".up_proj": ".gate_up_proj",
}
# every loader drops them, and nothing is lost: engines compute these buffers
_ROTARY = ("rotary_pos_emb.inv_freq", "rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
_FLOATS = ("BF16", "F16", "F32", "F64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What the pass left behind.

    Attributes:
        entries: one per checkpoint tensor, in the order of the checkpoint.
        filled: parameter -> {shard name ("" = whole): tensor} that was written.
        crash: (tensor, message) of the first exception, None if there was none.
        cut, padded: tensors whose values were cut off or filled up with zeros: name -> remark.
        unscaled: quantised values that went into a plain parameter without their scale.
    """

    entries: tuple[TensorEntry, ...]
    filled: Mapping[str, Mapping[str, str]]
    crash: tuple[str, str] | None = None
    cut: Mapping[str, str] = field(default_factory=dict)
    padded: Mapping[str, str] = field(default_factory=dict)
    unscaled: tuple[str, ...] = ()


@dataclass(slots=True)
class _Pass:
    filled: dict[str, dict[str, str]] = field(default_factory=dict)
    cut: dict[str, str] = field(default_factory=dict)
    padded: dict[str, str] = field(default_factory=dict)
    unscaled: list[str] = field(default_factory=list)
    pairs: dict[str, list[str]] = field(default_factory=dict)


class _LoaderRaises(Exception):
    """The engine's loader would raise here; caught inside this module."""


def load_tensors(
    rules: LoadRules, config: SeenConfig, parameters: Mapping[str, Parameter], draft: Checkpoint, *, map_exists: bool
) -> Loaded:
    """Load `draft` as the engine does.

    Args:
        parameters: from `runtime_parameters`.
        map_exists: the draft model has a parameter (or attribute) for the vocabulary map.
    """
    state = _Pass()
    entries: list[TensorEntry] = []
    crash: tuple[str, str] | None = None
    is_quantised = config.has("quantization_config") and bool(config.get("quantization_config"))
    for name, info in draft.tensors.items():
        try:
            entry = _load_one(rules, config, parameters, name, info, state, map_exists, is_quantised)
        except _LoaderRaises as error:
            entry = TensorEntry(name=name, fate="crash", remark=str(error))
            crash = crash or (name, str(error))
        entries.append(entry)
    entries = [_unpaired(e, state) for e in entries]
    return Loaded(
        entries=tuple(entries),
        filled=state.filled,
        crash=crash,
        cut=state.cut,
        padded=state.padded,
        unscaled=tuple(state.unscaled),
    )


def _load_one(
    rules: LoadRules,
    config: SeenConfig,
    parameters: Mapping[str, Parameter],
    name: str,
    info: TensorInfo,
    state: _Pass,
    map_exists: bool,
    is_quantised: bool,
) -> TensorEntry:
    kind = _map_kind(rules, name)
    if kind == "t2d":
        return TensorEntry(name=name, fate="by-design", remark="no engine needs it")
    if kind == "d2t":
        return _load_map(rules, config, name, info, state, map_exists)
    if skipped := _skipped_by_switch(rules, config, name):
        return skipped
    runtime, shard = _runtime_name(rules, name, parameters)
    parameter = parameters.get(runtime)
    if parameter is None:
        return _unmatched(rules, name, runtime, parameters, is_quantised)
    if shard and all(shard != s for s, _ in parameter.shards):
        shard = ""
    if parameter.fit == "joined":
        state.pairs.setdefault(runtime, []).append(name)
    remark = _fit(rules, name, info, parameter, shard, state, is_quantised)
    state.filled.setdefault(runtime, {})[shard] = name
    return TensorEntry(name=name, fate="used", parameter=runtime, remark=remark)


def _map_kind(rules: LoadRules, name: str) -> str | None:
    if rules.map_match == "suffix":
        return next((k for k in ("d2t", "t2d") if name == k or name.endswith(f".{k}")), None)
    # SGLang tests d2t first, vLLM t2d; no known name contains both
    return "d2t" if "d2t" in name else "t2d" if "t2d" in name else None


def _load_map(
    rules: LoadRules, config: SeenConfig, name: str, info: TensorInfo, state: _Pass, map_exists: bool
) -> TensorEntry:
    target = rules.map_parameter
    if rules.map_is_parameter:
        if not map_exists:
            raise _LoaderRaises(f"There is no module or parameter named '{target}': the vocabularies are equal")
        if name != "d2t":
            raise _LoaderRaises(f"There is no module or parameter named '{name.replace('d2t', target)}'")
        if info.shape != (config.draft_vocab,):
            raise _LoaderRaises(f"{target} has {config.draft_vocab} entries, d2t {list(info.shape)}")
    state.filled.setdefault(target, {})[""] = name
    return TensorEntry(name=name, fate="used", parameter=target, remark="offsets: target id = i + d2t[i]")


def _skipped_by_switch(rules: LoadRules, config: SeenConfig, name: str) -> TensorEntry | None:
    if any(part in name for part in _ROTARY):
        return TensorEntry(name=name, fate="by-design", remark="a buffer that the engine computes itself")
    if rules.parallel and "mask_hidden" in name:
        if config.get(PARALLEL):
            return TensorEntry(name=name, fate="used", parameter="mask_hidden", remark="buffer of parallel drafting")
        why = 'logged: "mask_hidden found in weights but model is not configured for parallel drafting"'
        return TensorEntry(name=name, fate="dropped", remark=why)
    if rules.reads_aux_switch and not config.get("eagle_config.use_aux_hidden_state", True) and "fc." in name:
        return TensorEntry(name=name, fate="dropped", remark="use_aux_hidden_state is false; no log line")
    norm_before_fc = config.get("eagle_config.norm_before_fc", config.get("norm_before_fc", False))
    if rules.drops_norms_off and not norm_before_fc and "input_norm." in name:
        return TensorEntry(name=name, fate="dropped", remark="norm_before_fc is false; no log line")
    return None


def _runtime_name(rules: LoadRules, name: str, parameters: Mapping[str, Parameter]) -> tuple[str, str]:
    """The runtime name that the loader looks up, and the shard it takes the tensor for ("" = whole)."""
    by_first = rules.prefix == "unless-contains"
    if by_first and "lm_head" in name:
        return name, ""
    mapped = name
    for old, new in rules.renames:
        mapped = mapped.replace(old, new, 1 if by_first else -1)
    for old, new in rules.rename_at_start:
        mapped = new + mapped.removeprefix(old) if mapped.startswith(old) else mapped
    is_plain = rules.prefix == "unless-starts" and mapped.startswith("lm_head.")
    mapped, shard = _stack(rules, mapped)
    if is_plain or (rules.prefix == "try" and mapped in parameters):
        return mapped, shard
    return f"model.{mapped}", shard


def _stack(rules: LoadRules, mapped: str) -> tuple[str, str]:
    pairs = dict(_STACKED)
    if rules.kind == "mla":
        fused = f".{rules.fused_a}"
        pairs = {".gate_proj": ".gate_up_proj", ".up_proj": ".gate_up_proj"}
        pairs |= {".q_a_proj": fused, ".kv_a_proj_with_mqa": fused}
    for part, whole in pairs.items():
        if part in mapped:
            return mapped.replace(part, whole, 1), part[1:]
    return mapped, ""


def _unmatched(
    rules: LoadRules, name: str, runtime: str, parameters: Mapping[str, Parameter], is_quantised: bool
) -> TensorEntry:
    module, _, kind = runtime.rpartition(".")
    has_module = any(p.startswith(f"{module}.") for p in parameters)
    if kind in SCALE_SUFFIXES and has_module and is_quantised and _is_quantised_module(rules, module):
        return TensorEntry(name=name, fate="used", parameter=runtime, remark="of a quantised linear; shape not checked")
    if rules.unmatched == "crash":
        if kind == "bias" and (has_module or module == "lm_head"):
            return TensorEntry(name=name, fate="dropped", remark="an unexpected bias: ignored at DEBUG level only")
        raise _LoaderRaises(f"There is no module or parameter named '{runtime.removeprefix('model.')}'")
    if rules.unmatched == "warning":
        why = f'logged: "Eagle3 MLA: skipping unexpected weight {name}"'
        return TensorEntry(name=name, fate="dropped", remark=why)
    return TensorEntry(name=name, fate="dropped", remark="no parameter of this name; no log line")


def _is_quantised_module(rules: LoadRules, module: str) -> bool:
    last = module.rsplit(".", 1)[-1]
    return last.endswith("_proj") or (last == "fc" and rules.quantises_fc) or last == "lm_head"


def _fit(
    rules: LoadRules,
    name: str,
    info: TensorInfo,
    parameter: Parameter,
    shard: str,
    state: _Pass,
    is_quantised: bool,
) -> str:
    module = parameter.name.rpartition(".")[0]
    if is_quantised and _is_quantised_module(rules, module) and info.dtype not in _FLOATS:
        return "quantised; packed shape not checked"
    if info.dtype not in _FLOATS:
        state.unscaled.append(name)
    expected = list(parameter.shape)
    if shard:
        expected[0] = dict(parameter.shards)[shard]
    elif parameter.fit == "joined" and parameter.shards:
        expected = list(parameter.shape)
    _check_shape(rules, name, info.shape, tuple(expected), parameter, state)
    remarks = [f"fused as {shard}"] if shard else []
    if info.dtype in ("F32", "F64"):
        remarks.append(f"cast {info.dtype} -> the engine's dtype")
    elif info.dtype not in _FLOATS:
        remarks.append(f"cast {info.dtype} -> the engine's dtype, without a scale")
    remarks += [x for x in (state.cut.get(name), state.padded.get(name)) if x]
    return ", ".join(remarks)


def _check_shape(
    rules: LoadRules,
    name: str,
    shape: tuple[int, ...],
    expected: tuple[int, ...],
    parameter: Parameter,
    state: _Pass,
) -> None:
    if shape == expected or 0 in expected:
        return
    raises = _LoaderRaises(f"{parameter.name} takes {list(expected)}, the tensor is {list(shape)}")
    axis = {"rows": 0, "columns": 1}.get(parameter.fit)
    if axis is None or len(shape) != len(expected):
        raise raises
    if any(s != e for i, (s, e) in enumerate(zip(shape, expected, strict=True)) if i != axis):
        raise raises
    unit = "rows" if axis == 0 else "columns"
    if shape[axis] > expected[axis]:
        if not rules.cuts_long:
            raise raises
        state.cut[name] = f"{unit} {expected[axis]}..{shape[axis] - 1} cut off in silence"
    elif parameter.pads:
        state.padded[name] = f"{unit} {shape[axis]}..{expected[axis] - 1} filled with zeros in silence"
    else:
        raise raises


def _unpaired(entry: TensorEntry, state: _Pass) -> TensorEntry:
    """SGLang's MLA loader joins q_a and kv_a before it loads them: one without the other is never loaded."""
    for runtime, names in state.pairs.items():
        if entry.name in names and len(names) == 1 and "" not in state.filled.get(runtime, {}):
            state.filled.pop(runtime, None)
            return replace(
                entry, fate="dropped", parameter=None, remark="never loaded without its partner; no log line"
            )
    return entry
