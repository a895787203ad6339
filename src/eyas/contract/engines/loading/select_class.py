"""From a draft's config.json to the class an engine builds: registry, model type, translation, or a refusal."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from eyas.contract.engines.loading.ledger import Reason, Verdict, reason
from eyas.contract.engines.loading.load_rules import LoadRules
from eyas.contract.engines.loading.seen_config import PARALLEL, SeenConfig
from eyas.contract.engines.registry import engine_named
from eyas.contract.engines.sglang import load_rules as sglang
from eyas.contract.engines.version import EngineVersion, at_least
from eyas.contract.engines.vllm import load_rules as vllm
from eyas.diagnostic import Convert, Edit, Remedies

_MODEL_TYPES = Path(__file__).parents[1] / "data" / "model_types.json"
_SPECULATORS_FIELDS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What the config selects.

    Attributes:
        rules: load rules of the class; None when the engine does not come that far.
        config: as that class sees it.
        reasons: why it is refused or crashes before the first weight; () if it goes on.
        class_name: of the runtime class, known or not.
    """

    rules: LoadRules | None = None
    config: SeenConfig | None = None
    reasons: tuple[Reason, ...] = ()
    class_name: str | None = None


def select_class(engine: EngineVersion, config: Mapping[str, Any], *, where: str, algorithm: str) -> Selection:
    """The class that `engine` builds for a draft with this config.json."""
    select = _select_sglang if engine.engine == "sglang" else _select_vllm
    return select(engine, config, where, algorithm)


def rules_for(engine: EngineVersion, draft_class: str) -> LoadRules | None:
    """The newest rule set of `draft_class` that is not newer than the engine's version."""
    table = sglang.RULES if engine.engine == "sglang" else vllm.RULES
    found = [r for r in table if r.draft_class == draft_class and at_least(engine.rules, r.since)]
    return found[-1] if found else None


def _select_sglang(engine: EngineVersion, config: Mapping[str, Any], where: str, algorithm: str) -> Selection:
    if "speculators_config" in config or "transformer_layer_config" in config:
        what = "a speculators checkpoint: SGLang does not read this format"
        why = "config.json has no top-level model_type and class names that are not registered"
        return _refused("speculators-format", what, where, why, Convert(draft=where, to="sglang"))
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not _is_known_model_type(engine, model_type):
        transformers = engine_named(engine.engine).releases.of(engine.rules).transformers
        return _refused(
            "model-type-unknown",
            "config.json has no model_type" if not model_type else f"model_type {model_type!r} is unknown",
            f"{where}: config.json: model_type",
            f"AutoConfig (transformers {transformers}) raises before any weight is read",
            'write "model_type": "llama" (an MLA draft: "kimi_k2", SGLang 0.5.12 or newer)',
        )
    name = _architecture(config)
    rules = rules_for(engine, name) if name else None
    if rules is not None:
        return Selection(rules=rules, config=SeenConfig(values=config, model_type=model_type), class_name=name)
    return _no_sglang_class(engine, config, name, where)


def _no_sglang_class(engine: EngineVersion, config: Mapping[str, Any], name: str | None, where: str) -> Selection:
    place = f"{where}: config.json: architectures"
    wanted = "Eagle3DeepseekV2ForCausalLM" if config.get("kv_lora_rank") else "LlamaForCausalLMEagle3"
    do = Edit("architectures", [wanted]), Convert(draft=where, to="sglang")
    if name == "Eagle3DeepseekV2ForCausalLM":
        why = f"the MLA draft class came with SGLang 0.5.12; {engine.version} has no such class"
        return _refused("draft-class-unknown", f"{name} is not registered", place, why, "use SGLang 0.5.12 or newer")
    if name in sglang.OLD_DRAFT_CLASSES:
        why = f"{name} is an EAGLE-1/2 class: it has no fc over three states, no d2t, no layer of 2H"
        return _stops("draft-class-wrong", "crash", f"architectures names {name}", place, why, do, name)
    if name and _is_target_class(name):
        why = (
            f"SGLang builds the target class {name} as the draft: midlayer.* / layers.0.* do not fit it, and it has"
            " no vocabulary map: an assertion or KeyError while loading"
        )
        return _stops("draft-class-is-target", "crash", f"architectures names {name}", place, why, do, name)
    what = f"architectures {name!r} is not registered" if name else "config.json has no architectures"
    why = "no draft class of that name; the fallback to transformers' own models raises ValueError"
    return _refused("draft-class-unknown", what, place, why, do)


def _select_vllm(engine: EngineVersion, config: Mapping[str, Any], where: str, algorithm: str) -> Selection:
    if config.get("model_type") is None and config.get("speculators_config") is not None:
        return _select_speculators(engine, config, where)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not _is_known_model_type(engine, model_type):
        return _refused(
            "model-type-unknown",
            "config.json has no model_type" if not model_type else f"model_type {model_type!r} is unknown",
            f"{where}: config.json: model_type",
            "neither vLLM's registry nor transformers knows the config class",
            'write "model_type": "llama"',
        )
    name = _architecture(config)
    if name is None:
        why = "vLLM falls back to the base model's name (Eagle3LlamaModel), which is not registered"
        do = Edit("architectures", ["LlamaForCausalLMEagle3"])
        return _refused("draft-class-unknown", "config.json has no architectures", where, why, do)
    prefix = "Eagle3" if algorithm == "EAGLE3" else "Eagle"
    is_named = name.startswith(prefix) or (algorithm == "EAGLE3" and name.endswith("Eagle3"))
    full = name if is_named else f"{prefix}{name}"
    class_name = vllm.REGISTRY.get(full)
    if class_name is None or (algorithm == "EAGLE" and "Eagle3" in full):
        return _refused(
            "draft-class-unknown",
            f"architectures {name!r} is not an EAGLE-3 draft for vLLM (looked up as {full})",
            f"{where}: config.json: architectures",
            f"registered names: {', '.join(sorted(vllm.REGISTRY))}",
            (Edit("architectures", ["LlamaForCausalLMEagle3"]), Convert(draft=where, to="vllm")),
        )
    rules = rules_for(engine, class_name)
    assert rules is not None, f"no rules for the registered class {class_name}"
    return Selection(rules=rules, config=SeenConfig(values=config, model_type=model_type), class_name=class_name)


def _select_speculators(engine: EngineVersion, config: Mapping[str, Any], where: str) -> Selection:
    layer = config.get("transformer_layer_config")
    kind = config.get("speculators_model_type")
    place = f"{where}: config.json"
    if kind not in ("eagle3", "peagle"):
        why = "only speculators_model_type eagle3 and peagle are EAGLE-3 drafts"
        return _refused("speculators-kind", f"speculators_model_type is {kind!r}", place, why, "use an eagle3 draft")
    if not isinstance(layer, Mapping):
        why = "vLLM takes the draft's sizes from it"
        do = "export the draft again with speculators 0.5 or newer"
        return _refused("speculators-incomplete", "no transformer_layer_config", place, why, do)
    # Source: vllm/transformers_utils/configs/speculators/algos.py update_eagle3, update_peagle (0.25.1, 0.33.0)
    model_type = layer.get("model_type", "llama")
    class_name = vllm.SPECULATORS_CLASSES.get(model_type) if isinstance(model_type, str) else None
    if class_name is None:
        why = "vLLM knows llama and qwen3 layers in speculators drafts; others raise ValueError"
        what = f"transformer_layer_config.model_type is {model_type!r}"
        return _refused("speculators-layer-type", what, place, why, Convert(draft=where, to="vllm"))
    seen = dict(layer)
    seen["draft_vocab_size"] = config.get("draft_vocab_size")
    if config.get("target_hidden_size") is not None:
        seen["target_hidden_size"] = config["target_hidden_size"]
    is_parallel = kind == "peagle"
    for key in _SPECULATORS_FIELDS[:2] if is_parallel else _SPECULATORS_FIELDS:
        seen[key] = config.get(key, key == "norm_before_residual" and not is_parallel)
    if is_parallel:
        seen[PARALLEL] = True
    if config.get("eagle_aux_hidden_state_layer_ids"):
        seen["eagle_aux_hidden_state_layer_ids"] = config["eagle_aux_hidden_state_layer_ids"]
    rules = rules_for(engine, class_name)
    assert rules is not None, f"no rules for the registered class {class_name}"
    return Selection(rules=rules, config=SeenConfig(values=seen, model_type=model_type), class_name=class_name)


def _architecture(config: Mapping[str, Any]) -> str | None:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names and isinstance(names[0], str) else None


def _is_target_class(name: str) -> bool:
    from eyas.contract.engines.loading.target_hooks import known_targets

    return name in known_targets("sglang")


def _is_known_model_type(engine: EngineVersion, model_type: str) -> bool:
    releases = engine_named(engine.engine).releases
    own = releases.model_types.get(model_type)
    if own is not None and at_least(engine.rules, own):
        return True
    pinned = releases.of(engine.rules).transformers
    return any(model_type in names for version, names in _model_types().items() if at_least(pinned, version))


@cache
def _model_types() -> dict[str, frozenset[str]]:
    return {
        version: frozenset(names) for version, names in json.loads(_MODEL_TYPES.read_text(encoding="utf-8")).items()
    }


def _refused(code: str, what: str, where: str, why: str, do: Remedies) -> Selection:
    return _stops(code, "refuses", what, where, why, do, None)


def _stops(
    code: str, verdict: Verdict, what: str, where: str, why: str, do: Remedies, class_name: str | None
) -> Selection:
    stop = reason(code=code, verdict=verdict, what=what, where=where, why=why, do=do)
    return Selection(reasons=(stop,), class_name=class_name)
