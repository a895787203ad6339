"""The load rules as rows to read: what `eyas engines` prints. Computes nothing, judges nothing."""

from typing import Any

from eyas.contract.engines.loading.load_rules import LoadRules
from eyas.contract.engines.registry import all_engines, engine_named
from eyas.contract.engines.version import at_least, parse_version


def engine_rows() -> list[dict[str, Any]]:
    """One row per rule set, oldest first within an engine."""
    return [
        {
            "engine": rules.engine,
            "since": rules.since,
            "draft_class": rules.draft_class,
            "versions": _grades(rules),
            "source": rules.source,
            "facts": _facts(rules),
        }
        for engine in all_engines()
        for rules in engine.loading.rules
    ]


def target_rows() -> list[dict[str, Any]]:
    """One row per target architecture that some version can tap."""
    rows = []
    for engine in all_engines():
        for architecture, steps in engine.loading.hooks.items():
            if any(step["hook"] for step in steps):
                shown = [{"since": s["since"], "state": _state(s), "source": s["source"]} for s in steps]
                rows.append({"engine": engine.name, "architecture": architecture, "steps": shown})
    return rows


def _state(step: dict[str, Any] | Any) -> str:
    if not step["hook"]:
        return "no hook"
    if not step.get("embed_and_head", True):
        return "hook, but no get_embed_and_head"
    return "yes" if step["hook"] is True else f"yes, ids {step['hook']}"


def _grades(rules: LoadRules) -> dict[str, str]:
    """Versions whose source was read (or loader run) that these rules answer for -> grade."""
    table = engine_named(rules.engine).loading.rules
    later = [r.since for r in table if r.draft_class == rules.draft_class and r is not rules]
    end = min((s for s in later if s != rules.since and at_least(s, rules.since)), key=parse_version, default=None)
    return {
        release.read: release.grade
        for release in engine_named(rules.engine).releases.entries
        if at_least(release.read, rules.since) and (end is None or not at_least(release.read, end))
    }


def _facts(rules: LoadRules) -> list[str]:
    lost = {
        "silent": "a name it does not know is dropped in silence",
        "warning": "a name it does not know is dropped with a warning",
        "crash": "a name it does not know is a crash; an unknown bias is dropped in silence",
    }[rules.unmatched]
    head = (
        "no lm_head: random rows" if rules.head_absent == "uninitialised" else "no lm_head: the target's, cut to size"
    )
    embedding = "own embedding kept if it differs" if rules.own_embedding else "embedding overwritten by the target's"
    layers = "one layer" if rules.max_layers == 1 else "any number of layers"
    return [
        f"layer 0 is {rules.layer_module.format(i=0)}{_renames(rules)}; {layers}",
        lost,
        f"{head}; {embedding}",
        f"aux states: {' > '.join(rules.num_aux) or 'always'} {'> 3' if rules.num_aux else '3'}",
        f"honours: {_honoured(rules)}",
        "no draft_vocab_size key: crash" if rules.needs_draft_vocab_key else "no draft_vocab_size key: vocab_size",
        f"a long projection is cut, a short one {'padded with zeros' if rules.pads_short else 'a crash'}",
    ]


def _renames(rules: LoadRules) -> str:
    names = [old for old, _ in (*rules.renames, *rules.rename_at_start)]
    return f" ({', '.join(names)} renamed)" if names else ""


def _honoured(rules: LoadRules) -> str:
    switches = {
        "norm_before_residual": rules.reads_residual,
        "norm_output": bool(rules.feedback_keys),
        "fc_norm": bool(rules.fc_norm_keys),
        "norm_before_fc": bool(rules.input_norm_keys),
        "q/k norms": rules.qk_norm,
        "attention_bias": rules.qkv_bias,
        "sliding_window": rules.window == "config",
        "tie_word_embeddings": rules.ties_head,
    }
    return ", ".join(name for name, has in switches.items() if has) or "none of the optional switches"
