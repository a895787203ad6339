"""How SGLang chooses a class for a draft, taps the target, and what only SGLang stumbles on.

Source: srt/models/registry.py, srt/speculative/, srt/models/*.py of the versions in `releases.toml`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from eyas.contract.engines.loading.aux_states import NESTED_IDS, AuxCapture, default_capture, layer_ids_at
from eyas.contract.engines.loading.ledger import Reason, Verdict, reason
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
from eyas.contract.engines.sglang.launching import served_dtype
from eyas.contract.engines.version import EngineVersion, at_least
from eyas.contract.spec.layer_ids import LayerIds
from eyas.contract.spec.target_spec import TargetSpec, config_dtype
from eyas.diagnostic import Convert, Edit, Flag, Remedies

_CLASS, _MLA_CLASS = "LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"


class SGLangLoading:
    """`Loading` of SGLang."""

    def __init__(self, engine: ServingEngine) -> None:
        self._releases, self.hooks = engine.releases, load_hooks(engine.folder)
        self.rules, table = read_rules(engine.name, engine.folder)
        self._old_classes = table["old_draft_classes"]

    def default_runner(self, version: str, target: TargetSpec | None) -> str | None:
        """There is only one."""
        return None

    def select(self, engine: EngineVersion, config: Mapping[str, Any], where: str, algorithm: str) -> Selection:
        """The class by `architectures`, after AutoConfig has accepted `model_type`."""
        if "speculators_config" in config or "transformer_layer_config" in config:
            what = "a speculators checkpoint: SGLang does not read this format"
            why = "config.json has no top-level model_type and class names that are not registered"
            return stops("speculators-format", what, where, why, Convert(draft=where, to="sglang"))
        transformers = self._releases.of(engine.rules).transformers
        why = f"AutoConfig (transformers {transformers}) raises before any weight is read"
        do = 'write "model_type": "llama" (an MLA draft: "kimi_k2", SGLang 0.5.12 or newer)'
        meant = rules_for(self.rules, engine, _MLA_CLASS if config.get("kv_lora_rank") else _CLASS)
        if refusal := model_type_refusal(self._releases, engine, config, where, why, do, meant):
            return refusal
        name = architecture_of(config)
        rules = rules_for(self.rules, engine, name)
        if rules is not None:
            seen = SeenConfig(values=config, model_type=config["model_type"])
            return Selection(rules=rules, config=seen, class_name=name)
        return self._no_class(engine, config, name, where, meant)

    def _no_class(
        self, engine: EngineVersion, config: Mapping[str, Any], name: str | None, where: str, meant: LoadRules | None
    ) -> Selection:
        place = f"{where}: config.json: architectures"
        wanted = _MLA_CLASS if config.get("kv_lora_rank") else _CLASS
        stop = partial(stops, meant=meant, config=config)
        do = Edit("architectures", [wanted]), Convert(draft=where, to="sglang")
        if name == _MLA_CLASS:
            why = f"the MLA draft class came with SGLang 0.5.12; {engine.version} has no such class"
            return stop("draft-class-unknown", f"{name} is not registered", place, why, "use SGLang 0.5.12 or newer")
        what = f"architectures names {name}"
        if name in self._old_classes:
            why = f"{name} is an EAGLE-1/2 class: it has no fc over three states, no d2t, no layer of 2H"
            return stop("draft-class-wrong", what, place, why, do, verdict="crash", class_name=name)
        if name in self.hooks:
            why = (
                f"SGLang builds the target class {name} as the draft: midlayer.* / layers.0.* do not fit it, and it has"
                " no vocabulary map: an assertion or KeyError while loading"
            )
            return stop("draft-class-is-target", what, place, why, do, verdict="crash", class_name=name)
        what = f"architectures {name!r} is not registered" if name else "config.json has no architectures"
        why = "no draft class of that name; the fallback to transformers' own models raises ValueError"
        return stop("draft-class-unknown", what, place, why, do)

    def capture(
        self,
        engine: EngineVersion,
        runner: str | None,
        config: SeenConfig,
        hook: TargetHook,
        num_layers: int | None,
        trained: tuple[int, ...] | None,
    ) -> AuxCapture:
        """Ids in eagle_config, read as the target's class reads them, in the order of the layers."""
        if config.get("eagle_config.use_aux_hidden_state", True) is False:
            return AuxCapture(boundaries=(), source="eagle_config.use_aux_hidden_state is false", is_off=True)
        # any exception while reading is swallowed. Source: spec_aux_hidden_state.py:185-196
        ids, source = layer_ids_at(config, NESTED_IDS), NESTED_IDS
        if ids is None:
            return default_capture(hook, num_layers, source if config.has(source) else "no ids in eagle_config")
        if hook.convention == "last-is-n" and num_layers is None:
            return AuxCapture(boundaries=None, source=source)
        read = LayerIds(ids=ids, convention=hook.convention if hook.status != "unknown" else "after-layer")
        boundaries = tuple(sorted(set(read.boundaries(num_layers))))
        return AuxCapture(boundaries=boundaries, source=f"{source}, read as {read.convention}")

    def aux_remedy(self, trained: tuple[int, ...], runner: str | None, where: str) -> Remedies:
        """The conversion writes the ids."""
        return Convert(draft=where, to="sglang", remark=f"writes ids that SGLang reads as {list(trained)}")

    def hook_fault(self, engine: EngineVersion, hook: TargetHook) -> tuple[Verdict, str, str] | None:
        """What happens at start when the target cannot be tapped."""
        name = hook.architecture
        if hook.status == "unregistered":
            what = f"{engine.label} does not know the target class {name}"
            return "refuses", what, "the target itself does not load"
        if hook.status == "no-head":
            why = "the draft worker asks the target for its embedding and head: AttributeError at start"
            return "crash", f"{name} has no get_embed_and_head in {engine.label}", why
        if hook.status != "absent":
            return None
        what = f"{name} has no set_eagle3_layers_to_capture in {engine.label}"
        if at_least(engine.rules, "0.5.23"):
            return "refuses", what, "ValueError at start"
        return "crash", what, "AttributeError at start, after the weights were loaded"

    def own_reasons(self, draft: LoadedDraft) -> list[Reason]:
        """An EAGLE-3 draft under the algorithm EAGLE; a draft that computes in another dtype than its target."""
        found = _dtype(draft)
        if draft.algorithm != "EAGLE":
            return found
        return [
            *found,
            reason(
                code="algorithm-eagle",
                verdict="silent-damage",
                severity="fatal",
                what="--speculative-algorithm EAGLE with an EAGLE-3 draft",
                where=draft.where,
                why="no aux states are captured, fc is skipped by a shape test, the head is the target's, d2t is"
                " unused: the server is healthy and accepts nothing",
                do=Flag("--speculative-algorithm", "EAGLE3"),
            ),
        ]


def _dtype(draft: LoadedDraft) -> list[Reason]:
    """With --dtype auto each model takes its own config's dtype, and the draft's class does not cast its inputs.

    Source: srt/configs/model_config.py _get_and_verify_dtype; srt/models/llama_eagle3.py (no cast).
    """
    target = draft.target
    own = config_dtype(draft.config.values)
    if target is None or target.dtype is None or served_dtype(own) == served_dtype(target.dtype):
        return []
    wanted = served_dtype(target.dtype)
    said = f"says {own}" if own else "names no dtype"
    found = reason(
        code="draft-dtype",
        verdict="crash",
        what=f"the draft computes in {served_dtype(own)}, its target in {wanted}",
        where=f"{draft.where}: config.json: torch_dtype",
        why=f"config.json {said}; --dtype auto takes each model's own (none or float32 becomes float16), and the"
        " first product of the target's states and fc raises: mat1 and mat2 must have the same dtype",
        do=(Edit("torch_dtype", wanted), Flag("--dtype", wanted, "(eyas serve does)")),
        items=("torch_dtype",),
    )
    return [replace(found, stage="capture")]  # it loads; the first states of the target meet it


LOADING: Callable[[ServingEngine], Loading] = SGLangLoading
