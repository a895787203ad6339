"""What it means for a launch that an engine version cannot tap a target."""

from eyas.contract.engines.loading.ledger import Reason, Verdict, reason
from eyas.contract.engines.loading.target_hooks import TargetHook
from eyas.contract.engines.version import EngineVersion, at_least


def hook_reasons(engine: EngineVersion, hook: TargetHook, where: str) -> list[Reason]:
    """One reason when the target's class has no hook, no head access, or is unknown to this version."""
    if hook.status in ("present", "unknown"):
        return []
    name = hook.architecture
    if hook.status == "unregistered":
        if engine.engine == "vllm":
            # vLLM falls back to its transformers backend, which has the hook
            return []
        what, why = f"{engine.label} does not know the target class {name}", "the target itself does not load"
        verdict: Verdict = "refuses"
    elif hook.status == "no-head":
        what = f"{name} has no get_embed_and_head in {engine.label}"
        why = "the draft worker asks the target for its embedding and head: AttributeError at start"
        verdict = "crash"
    elif engine.engine == "vllm":
        what, why = (
            f"{name} cannot be tapped in {engine.label}",
            "RuntimeError: Model does not support EAGLE3 interface",
        )
        verdict = "refuses"
    else:
        what = f"{name} has no set_eagle3_layers_to_capture in {engine.label}"
        clear = at_least(engine.rules, "0.5.23")
        why = "ValueError at start" if clear else "AttributeError at start, after the weights were loaded"
        verdict = "refuses" if clear else "crash"
    do = f"use {engine.engine} {hook.first} or newer" if hook.first else "no version known has it; patch the model file"
    if hook.first and at_least(engine.rules, hook.first):
        do = "no later version in the table has it again; choose another engine"
    return [
        reason(
            code="target-hook-missing",
            verdict=verdict,
            what=what,
            where=f"{where} with target class {name} ({hook.source or 'model registry'})",
            why=why,
            do=do,
            items=(name,),
        )
    ]
