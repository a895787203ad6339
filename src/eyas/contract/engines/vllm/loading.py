"""How vLLM chooses a class and a runner for a draft, taps the target, and what only vLLM stumbles on.

Source: model_executor/models/registry.py, transformers_utils/configs/speculators/, v1/worker/ of the versions in
`releases.toml`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from eyas.contract.engines.loading.aux_states import NESTED_IDS, TOP_IDS, AuxCapture, default_capture, layer_ids_at
from eyas.contract.engines.loading.ledger import Reason, Verdict, reason
from eyas.contract.engines.loading.load_rules import read_rules
from eyas.contract.engines.loading.seen_config import PARALLEL, SeenConfig
from eyas.contract.engines.loading.selection import (
    Selection,
    architecture_of,
    model_type_refusal,
    rules_for,
    stops,
)
from eyas.contract.engines.loading.target_hooks import TargetHook, load_hooks
from eyas.contract.engines.serving_engine import LoadedDraft, Loading, ServingEngine
from eyas.contract.engines.version import EngineVersion, at_least
from eyas.contract.spec.config_keys import MASK_TOKEN_KEYS
from eyas.contract.spec.target_spec import TargetSpec
from eyas.diagnostic import Convert, Edit, Flag, Remedies

_SPECULATORS_FIELDS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
_OTHER_IDS = "eagle_config.layer_ids"


class VllmLoading:
    """`Loading` of vLLM."""

    def __init__(self, engine: ServingEngine) -> None:
        self._releases, self.hooks = engine.releases, load_hooks(engine.folder)
        self.rules, self._names = read_rules(engine.name, engine.folder)

    def default_runner(self, version: str, target: TargetSpec | None) -> str | None:
        """V2 since 0.25.0; up to 0.32 targets with experts keep V1.

        Source: vllm/config/vllm.py use_v2_model_runner; 0.25.1 config/vllm.py:557-574.
        """
        has_experts = target is not None and any(target.text_config.get(key) for key in _EXPERTS)
        return "v2" if at_least(version, "0.32.0" if has_experts else "0.25.0") else "v1"

    def select(self, engine: EngineVersion, config: Mapping[str, Any], where: str, algorithm: str) -> Selection:
        """The class by `architectures` with "Eagle3" put before it; a speculators config is translated first."""
        if config.get("model_type") is None and config.get("speculators_config") is not None:
            return self._select_speculators(engine, config, where)
        why, do = "neither vLLM's registry nor transformers knows the config class", 'write "model_type": "llama"'
        kind = "Eagle3DeepseekV2ForCausalLM" if config.get("kv_lora_rank") else "Eagle3LlamaForCausalLM"
        meant = rules_for(self.rules, engine, kind)
        if refusal := model_type_refusal(self._releases, engine, config, where, why, do, meant):
            return refusal
        name = architecture_of(config)
        if name is None:
            why = "vLLM falls back to the base model's name (Eagle3LlamaModel), which is not registered"
            edit = Edit("architectures", ["LlamaForCausalLMEagle3"])
            what = "config.json has no architectures"
            return stops("draft-class-unknown", what, where, why, edit, meant=meant, config=config)
        prefix = "Eagle3" if algorithm == "EAGLE3" else "Eagle"
        is_named = name.startswith(prefix) or (algorithm == "EAGLE3" and name.endswith("Eagle3"))
        full = name if is_named else f"{prefix}{name}"
        registry = self._names["registry"]
        class_name = registry.get(full)
        if class_name is None or (algorithm == "EAGLE" and "Eagle3" in full):
            return stops(
                "draft-class-unknown",
                f"architectures {name!r} is not an EAGLE-3 draft for vLLM (looked up as {full})",
                f"{where}: config.json: architectures",
                f"registered names: {', '.join(sorted(registry))}",
                (Edit("architectures", ["LlamaForCausalLMEagle3"]), Convert(draft=where, to="vllm")),
                meant=meant,
                config=config,
            )
        # without a mask token vLLM refuses parallel drafting, so eyas does not launch it
        is_parallel = any(config.get(key) is not None for key in MASK_TOKEN_KEYS)
        values = {**config, PARALLEL: True} if is_parallel else config
        return self._selected(engine, class_name, values, config["model_type"])

    def capture(
        self,
        engine: EngineVersion,
        runner: str | None,
        config: SeenConfig,
        hook: TargetHook,
        num_layers: int | None,
        trained: tuple[int, ...] | None,
    ) -> AuxCapture:
        """Ids are boundaries, sorted and de-duplicated; which key is read depends on the runner.

        Source: model_executor/models/interfaces.py set_aux_hidden_state_layers.
        """
        if config.get("eagle_config.use_aux_hidden_state", True) is False:
            return AuxCapture(boundaries=(), source="eagle_config.use_aux_hidden_state is false", is_off=True)
        paths = [TOP_IDS]
        if runner == "v1":
            paths.append(NESTED_IDS)
        elif at_least(engine.rules, "0.32.0"):
            paths.append(_OTHER_IDS)
        for path in paths:
            if ids := layer_ids_at(config, path):
                return AuxCapture(boundaries=tuple(sorted(set(ids))), source=f"{path}, as boundaries, sorted")
        if runner != "v1":
            source = "no top-level ids (the V2 runner does not read those in eagle_config)"
        else:
            source = NESTED_IDS if config.has(NESTED_IDS) else "no ids"
        return default_capture(hook, num_layers, source)

    def aux_remedy(self, trained: tuple[int, ...], runner: str | None, where: str) -> Remedies:
        """The key that every runner reads."""
        both = ", which both runners read" if runner else ""
        ids = Edit("eagle_aux_hidden_state_layer_ids", sorted(trained), f" at the top level{both}")
        return ids, Convert(draft=where, to="vllm")

    def hook_fault(self, engine: EngineVersion, hook: TargetHook) -> tuple[Verdict, str, str] | None:
        """A class that vLLM does not have runs on its transformers backend, which has the hook."""
        if hook.status != "absent":
            return None
        what = f"{hook.architecture} cannot be tapped in {engine.label}"
        return "refuses", what, "RuntimeError: Model does not support EAGLE3 interface"

    def own_reasons(self, draft: LoadedDraft) -> list[Reason]:
        """The V2 runner compares the draft's head with the target's.

        Source: vllm/v1/worker/gpu/spec_decode/eagle/utils.py _should_share compares with target.weight unguarded.
        """
        target, loaded = draft.target, draft.loaded
        if draft.runner != "v2" or target is None or not target.is_head_quantized:
            return []
        if "lm_head.weight" not in loaded.filled:
            return []
        return [
            reason(
                code="target-head-quantised",
                verdict="crash",
                what="the target's lm_head is quantised and the draft has its own",
                where=f"{draft.where} with {target.where}",
                why=f"the V2 runner of {draft.engine.label} compares the two by `.weight`; a quantised head has none",
                do=(Flag("VLLM_USE_V2_MODEL_RUNNER", "0"), "serve a target whose lm_head is left unquantised"),
            )
        ]

    def _select_speculators(self, engine: EngineVersion, config: Mapping[str, Any], where: str) -> Selection:
        layer = config.get("transformer_layer_config")
        kind = config.get("speculators_model_type")
        place = f"{where}: config.json"
        if kind not in ("eagle3", "peagle"):
            why = "only speculators_model_type eagle3 and peagle are EAGLE-3 drafts"
            return stops("speculators-kind", f"speculators_model_type is {kind!r}", place, why, "use an eagle3 draft")
        if not isinstance(layer, Mapping):
            why = "vLLM takes the draft's sizes from it"
            do = "export the draft again with speculators 0.5 or newer"
            return stops("speculators-incomplete", "no transformer_layer_config", place, why, do)
        # Source: vllm/transformers_utils/configs/speculators/algos.py update_eagle3, update_peagle (0.25.1, 0.33.0)
        model_type = layer.get("model_type", "llama")
        class_name = self._names["speculators"].get(model_type) if isinstance(model_type, str) else None
        if class_name is None:
            why = "vLLM knows llama and qwen3 layers in speculators drafts; others raise ValueError"
            what = f"transformer_layer_config.model_type is {model_type!r}"
            return stops("speculators-layer-type", what, place, why, Convert(draft=where, to="vllm"))
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
        return self._selected(engine, class_name, seen, model_type)

    def _selected(
        self, engine: EngineVersion, class_name: str, values: Mapping[str, Any], model_type: str
    ) -> Selection:
        rules = rules_for(self.rules, engine, class_name)
        assert rules is not None, f"no rules for the registered class {class_name}"
        return Selection(rules=rules, config=SeenConfig(values=values, model_type=model_type), class_name=class_name)


LOADING: Callable[[ServingEngine], Loading] = VllmLoading
