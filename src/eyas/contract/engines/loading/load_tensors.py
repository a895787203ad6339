"""A loader's pass over a checkpoint: each tensor to its parameter, by name and shape, as the rules say. No verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from eyas.contract.engines.loading.ledger import TensorEntry
from eyas.contract.engines.loading.load_rules import LoadRules
from eyas.contract.engines.loading.runtime_parameters import Parameter
from eyas.contract.engines.loading.seen_config import PARALLEL, SeenConfig
from eyas.contract.files.checkpoint import Checkpoint, TensorInfo
from eyas.contract.spec.tensor_names import PACKED_WEIGHTS, SCALE_SUFFIXES

_STACKED_MLP = {".gate_proj": ".gate_up_proj", ".up_proj": ".gate_up_proj"}
_STACKED = {f".{part}_proj": ".qkv_proj" for part in "qkv"} | _STACKED_MLP
# every loader drops them, and nothing is lost: engines compute these buffers
_ROTARY = ("rotary_pos_emb.inv_freq", "rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
_FLOATS = ("BF16", "F16", "F32", "F64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What the pass left behind.

    Attributes:
        entries: one per checkpoint tensor, in the order of the checkpoint.
        filled: parameter -> {shard name ("" = whole): tensor} that was written.
        crashes: (tensor, message) of each exception; a loader stops at the first.
        cut, padded: tensors whose values were cut off or filled up with zeros: name -> remark.
        unscaled: quantised values that went into a plain parameter without their scale.
    """

    entries: tuple[TensorEntry, ...]
    filled: Mapping[str, Mapping[str, str]]
    crashes: tuple[tuple[str, str], ...] = ()
    cut: Mapping[str, str] = field(default_factory=dict)
    padded: Mapping[str, str] = field(default_factory=dict)
    unscaled: tuple[str, ...] = ()


class _LoaderRaises(Exception):
    """The engine's loader would raise here; caught inside this module."""

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


def load_tensors(
    rules: LoadRules, config: SeenConfig, parameters: Mapping[str, Parameter], draft: Checkpoint, *, map_exists: bool
) -> Loaded:
    """Load `draft` as the engine does.

    Args:
        parameters: from `runtime_parameters`.
        map_exists: the draft model has a parameter (or attribute) for the vocabulary map.
    """
    loader = _Pass(rules, config, parameters, map_exists)
    entries: list[TensorEntry] = []
    crashes: list[tuple[str, str]] = []
    for name, info in draft.tensors.items():
        try:
            entry = loader.load(name, info)
        except _LoaderRaises as error:
            entry = TensorEntry(name=name, fate="crash", parameter=error.parameter, remark=str(error))
            crashes.append((name, str(error)))
        entries.append(entry)
    return Loaded(
        entries=tuple(loader.unpaired(e) for e in entries),
        filled=loader.filled,
        crashes=tuple(crashes),
        cut=loader.cut,
        padded=loader.padded,
        unscaled=tuple(loader.unscaled),
    )


class _Pass:
    """One pass of a loader over a checkpoint."""

    def __init__(
        self, rules: LoadRules, config: SeenConfig, parameters: Mapping[str, Parameter], map_exists: bool
    ) -> None:
        self.rules, self.config, self.parameters, self.map_exists = rules, config, parameters, map_exists
        self.is_quantised = bool(config.get("quantization_config"))
        self.filled: dict[str, dict[str, str]] = {}
        self.cut: dict[str, str] = {}
        self.padded: dict[str, str] = {}
        self.unscaled: list[str] = []
        self.pairs: dict[str, list[str]] = {}

    def load(self, name: str, info: TensorInfo) -> TensorEntry:
        """What becomes of one tensor."""
        kind = self._map_kind(name)
        if kind == "t2d":
            return TensorEntry(name=name, fate="by-design", remark="no engine needs it")
        if kind == "d2t":
            return self._load_map(name, info)
        if skipped := self._skipped_by_switch(name):
            return skipped
        runtime, shard = self._runtime_name(name)
        parameter = self.parameters.get(runtime)
        if parameter is None:
            return self._unmatched(name, runtime, shard)
        if shard and all(shard != s for s, _ in parameter.shards):
            shard = ""
        if parameter.fit == "joined":
            self.pairs.setdefault(runtime, []).append(name)
        remark = self._fit(name, info, parameter, shard)
        self.filled.setdefault(runtime, {})[shard] = name
        return TensorEntry(name=name, fate="used", parameter=runtime, remark=remark)

    def unpaired(self, entry: TensorEntry) -> TensorEntry:
        """SGLang's MLA loader joins q_a and kv_a before it loads them: one without the other is never loaded."""
        for runtime, names in self.pairs.items():
            if entry.name in names and len(names) == 1 and "" not in self.filled.get(runtime, {}):
                self.filled.pop(runtime, None)
                remark = "never loaded without its partner; no log line"
                return replace(entry, fate="dropped", parameter=None, remark=remark)
        return entry

    def _map_kind(self, name: str) -> str | None:
        if self.rules.map_match == "suffix":
            return next((k for k in ("d2t", "t2d") if name == k or name.endswith(f".{k}")), None)
        # some loaders test d2t first, some t2d; no known name contains both
        return "d2t" if "d2t" in name else "t2d" if "t2d" in name else None

    def _load_map(self, name: str, info: TensorInfo) -> TensorEntry:
        target, entries = self.rules.map_parameter, self.config.draft_vocab
        if self.rules.map_is_parameter:
            is_silent = self.rules.unmatched == "silent"
            if not self.map_exists and is_silent:
                return TensorEntry(name=name, fate="by-design", remark="no map is built: the vocabularies are equal")
            if not self.map_exists:
                raise _LoaderRaises(f"There is no module or parameter named '{target}': the vocabularies are equal")
            if name != "d2t" and is_silent:
                return TensorEntry(name=name, fate="dropped", remark="no parameter of this name; no log line")
            if name != "d2t":
                raise _LoaderRaises(f"There is no module or parameter named '{name.replace('d2t', target)}'")
            if info.shape != (entries,):
                raise _LoaderRaises(f"{target} has {entries} entries, d2t {list(info.shape)}", target)
        self.filled.setdefault(target, {})[""] = name
        return TensorEntry(name=name, fate="used", parameter=target, remark="offsets: target id = i + d2t[i]")

    def _skipped_by_switch(self, name: str) -> TensorEntry | None:
        rules, config = self.rules, self.config
        if any(part in name for part in _ROTARY):
            return TensorEntry(name=name, fate="by-design", remark="a buffer that the engine computes itself")
        if "mask_hidden" in name and not rules.parallel:
            remark = "of parallel drafting, which this engine does not have: it drafts one token a step"
            return TensorEntry(name=name, fate="by-design", remark=remark)
        if "mask_hidden" in name:
            if config.get(PARALLEL):
                remark = "buffer of parallel drafting"
                return TensorEntry(name=name, fate="used", parameter="mask_hidden", remark=remark)
            why = 'logged: "mask_hidden found in weights but model is not configured for parallel drafting"'
            return TensorEntry(name=name, fate="dropped", remark=why)
        if rules.reads_aux_switch and not config.get("eagle_config.use_aux_hidden_state", True) and "fc." in name:
            return TensorEntry(name=name, fate="dropped", remark="use_aux_hidden_state is false; no log line")
        norm_before_fc = config.get("eagle_config.norm_before_fc", config.get("norm_before_fc", False))
        if rules.drops_norms_off and not norm_before_fc and "input_norm." in name:
            return TensorEntry(name=name, fate="dropped", remark="norm_before_fc is false; no log line")
        return None

    def _runtime_name(self, name: str) -> tuple[str, str]:
        """The runtime name that the loader looks up, and the shard it takes the tensor for ("" = whole)."""
        rules = self.rules
        by_first = rules.prefix == "unless-contains"
        if by_first and "lm_head" in name:
            return name, ""
        mapped = name
        for old, new in rules.renames:
            mapped = mapped.replace(old, new, 1 if by_first else -1)
        for old, new in rules.rename_at_start:
            mapped = new + mapped.removeprefix(old) if mapped.startswith(old) else mapped
        is_plain = rules.prefix == "unless-starts" and mapped.startswith("lm_head.")
        pairs = _STACKED
        if rules.kind == "mla":
            fused = f".{rules.fused_a}"
            pairs = _STACKED_MLP | {".q_a_proj": fused, ".kv_a_proj_with_mqa": fused}
        part = next((part for part in pairs if part in mapped), "")
        mapped = mapped.replace(part, pairs[part], 1) if part else mapped
        if is_plain or (rules.prefix == "try" and mapped in self.parameters):
            return mapped, part[1:]
        return f"model.{mapped}", part[1:]

    def _unmatched(self, name: str, runtime: str, shard: str) -> TensorEntry:
        module, _, kind = runtime.rpartition(".")
        has_module = any(p.startswith(f"{module}.") for p in self.parameters)
        if kind in SCALE_SUFFIXES and has_module and self._is_quantised_module(module):
            if kind in PACKED_WEIGHTS and f"{module}.weight" in self.parameters:
                self.filled.setdefault(f"{module}.weight", {})[shard] = name
            remark = "of a quantised linear; shape not checked"
            return TensorEntry(name=name, fate="used", parameter=runtime, remark=remark)
        if self.rules.unmatched == "crash":
            if kind == "bias" and (has_module or module == "lm_head"):
                return TensorEntry(name=name, fate="dropped", remark="an unexpected bias: ignored at DEBUG level only")
            raise _LoaderRaises(f"There is no module or parameter named '{runtime.removeprefix('model.')}'")
        remark = "no parameter of this name; no log line"
        if self.rules.unmatched == "warning":
            remark = f'logged: "Eagle3 MLA: skipping unexpected weight {name}"'
        return TensorEntry(name=name, fate="dropped", remark=remark)

    def _is_quantised_module(self, module: str) -> bool:
        last = module.rsplit(".", 1)[-1]
        is_linear = last.endswith("_proj") or (last == "fc" and self.rules.quantises_fc) or last == "lm_head"
        return self.is_quantised and is_linear

    def _fit(self, name: str, info: TensorInfo, parameter: Parameter, shard: str) -> str:
        if info.dtype not in _FLOATS:
            if self._is_quantised_module(parameter.name.rpartition(".")[0]):
                return "quantised; packed shape not checked"
            self.unscaled.append(name)
        expected = parameter.shape
        if shard:
            expected = (dict(parameter.shards)[shard], *expected[1:])
        self._check_shape(name, info.shape, expected, parameter)
        remarks = [f"fused as {shard}"] if shard else []
        if info.dtype in ("F32", "F64"):
            remarks.append(f"cast {info.dtype} -> the engine's dtype")
        elif info.dtype not in _FLOATS:
            remarks.append(f"cast {info.dtype} -> the engine's dtype, without a scale")
        remarks += [x for x in (self.cut.get(name), self.padded.get(name)) if x]
        return ", ".join(remarks)

    def _check_shape(self, name: str, shape: tuple[int, ...], expected: tuple[int, ...], parameter: Parameter) -> None:
        if shape == expected or 0 in expected:
            return
        axis = {"rows": 0, "columns": 1}.get(parameter.fit)
        differing = [i for i, (s, e) in enumerate(zip(shape, expected, strict=False)) if s != e]
        is_sharded = axis is not None and len(shape) == len(expected) and differing == [axis]
        is_long = is_sharded and axis is not None and shape[axis] > expected[axis]
        if axis is None or not is_sharded or not (self.rules.cuts_long if is_long else parameter.pads):
            message = f"{parameter.name} takes {list(expected)}, the tensor is {list(shape)}"
            raise _LoaderRaises(message, parameter.name)
        unit = "rows" if axis == 0 else "columns"
        if is_long:
            self.cut[name] = f"{unit} {expected[axis]}..{shape[axis] - 1} cut off in silence"
        else:
            self.padded[name] = f"{unit} {shape[axis]}..{expected[axis] - 1} filled with zeros in silence"
