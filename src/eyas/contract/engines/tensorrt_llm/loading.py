"""How TensorRT-LLM chooses a class for a draft and taps the target, and what only it stumbles on.

Source: _torch/models/modeling_speculative.py, _torch/pyexecutor/model_loader.py, llmapi/llm_args.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from eyas.contract.engines.loading.aux_states import AuxCapture, default_capture
from eyas.contract.engines.loading.ledger import Reason, Verdict
from eyas.contract.engines.loading.load_rules import LoadRules, read_rules
from eyas.contract.engines.loading.seen_config import SeenConfig
from eyas.contract.engines.loading.selection import (
    Selection,
    architecture_of,
    model_type_refusal,
    rules_for,
    stops,
)
from eyas.contract.engines.loading.target_hooks import TargetHook, load_hooks
from eyas.contract.engines.serving_engine import LoadedDraft, Loading, ServingEngine
from eyas.contract.engines.tensorrt_llm.own_faults import own_faults
from eyas.contract.engines.version import EngineVersion, at_least
from eyas.contract.spec.target_spec import TargetSpec
from eyas.diagnostic import Convert, Edit, Remedies

_NAME, _CLASS = "tensorrt-llm", "Eagle3ForCausalLM"


class TensorRTLLMLoading:
    """`Loading` of TensorRT-LLM."""

    def __init__(self, engine: ServingEngine) -> None:
        self._releases, self.hooks = engine.releases, load_hooks(engine.folder)
        self.rules, _ = read_rules(engine.name, engine.folder)

    def default_runner(self, version: str, target: TargetSpec | None) -> str | None:
        """There is only one."""
        return None

    def select(self, engine: EngineVersion, config: Mapping[str, Any], where: str, algorithm: str) -> Selection:
        """One class for every draft, with an MLA layer if `kv_lora_rank` is set."""
        if "speculators_config" in config or "transformer_layer_config" in config:
            what = "a speculators checkpoint: TensorRT-LLM does not read this format"
            why = "config.json has no top-level model_type: AutoConfig raises"
            return stops("speculators-format", what, where, why, Convert(draft=where, to=_NAME))
        transformers = self._releases.of(engine.rules).transformers
        why = f"AutoConfig (transformers {transformers}) raises before any weight is read"
        do = 'write "model_type": "llama"'
        has_mla = bool(config.get("kv_lora_rank")) and at_least(engine.rules, "1.2.0rc4")
        rules = rules_for(self.rules, engine, f"{_CLASS} (MLA)" if has_mla else _CLASS)
        if refusal := model_type_refusal(self._releases, engine, config, where, why, do, rules):
            return refusal
        if architecture_of(config) is None:
            return stops(
                "architectures-missing",
                "config.json has no architectures",
                f"{where}: config.json: architectures",
                "the weight mapper is looked up by architectures[0]: TypeError after the target's weights were loaded;"
                " any name will do",
                Edit("architectures", ["LlamaForCausalLMEagle3"]),
                verdict="crash",
                class_name=_CLASS,
                meant=rules,
                config=config,
            )
        assert rules is not None, "the oldest release has rules"
        seen = SeenConfig(values=config, model_type=config["model_type"])
        return Selection(rules=_for_layers(rules, seen), config=seen, class_name=rules.draft_class)

    def capture(
        self,
        engine: EngineVersion,
        runner: str | None,
        config: SeenConfig,
        hook: TargetHook,
        num_layers: int | None,
        trained: tuple[int, ...] | None,
    ) -> AuxCapture:
        """What the launch names in `eagle3_layers_to_capture`: eyas writes the trained boundaries there.

        Nothing is read from the draft's config. The ids are a set of layers: the states come in the order of the
        layers, and the embedding (boundary 0) has no id.
        """
        if trained is None:
            return default_capture(hook, num_layers, "no eagle3_layers_to_capture in the launch")
        tapped = tuple(sorted({b for b in trained if b > 0}))
        return AuxCapture(boundaries=tapped, source="eagle3_layers_to_capture of the launch")

    def aux_remedy(self, trained: tuple[int, ...], runner: str | None, where: str) -> Remedies:
        """Nothing to write: boundaries differ only where a set of layers cannot express them."""
        return "train on increasing boundaries without the embedding (0), or serve the draft with another engine"

    def hook_fault(self, engine: EngineVersion, hook: TargetHook) -> tuple[Verdict, str, str] | None:
        """A target class without a place for a draft."""
        if hook.status != "absent":
            return None
        what = f"{hook.architecture} takes no EAGLE-3 draft in {engine.label}"
        return "crash", what, "AttributeError (draft_config) after the target's weights were loaded"

    def own_reasons(self, draft: LoadedDraft) -> list[Reason]:
        """Every parameter whose loader asserts that its tensors are there, and keys that nothing reads."""
        return own_faults(draft)


def _for_layers(rules: LoadRules, config: SeenConfig) -> LoadRules:
    """The rules for this number of layers: one is `midlayer`, several are `midlayer.0`, `midlayer.1` ..."""
    if config.size("num_hidden_layers") < 2:
        return rules
    renames = (("layers.", "midlayer."),) if rules.rename_at_start else ()
    return replace(rules, layer_module="midlayer.{i}", rename_at_start=renames)


LOADING: Callable[[ServingEngine], Loading] = TensorRTLLMLoading
