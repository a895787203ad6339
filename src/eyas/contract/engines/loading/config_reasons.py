"""What an engine cannot do with a draft's config, before any weight is read: crashes, RoPE spelling, window."""

from eyas.contract.engines.loading.ledger import DamageSeverity, Reason, said
from eyas.contract.engines.loading.load_rules import LoadRules
from eyas.contract.engines.loading.runtime_parameters import num_aux_states
from eyas.contract.engines.loading.seen_config import SeenConfig
from eyas.contract.engines.version import EngineVersion, at_least
from eyas.contract.spec.draft_spec import DraftReading
from eyas.diagnostic import Convert


def start_reasons(
    rules: LoadRules, config: SeenConfig, where: str, head_rows: int | None, deeper_since: str | None
) -> list[Reason]:
    """Every crash of the class's constructor that the config alone shows, and an fc that is skipped.

    Args:
        head_rows: of the draft's own lm_head, for what to write; None = it has none.
        deeper_since: first version of the engine whose class of this name takes more layers; None = none does.
    """
    place, act = f"{where}: config.json", config.get("hidden_act", "silu")
    layers, width = config.size("num_hidden_layers"), num_aux_states(rules, config) * config.target_hidden
    found = []
    if rules.needs_draft_vocab_key and not config.has("draft_vocab_size"):
        rows = f"{head_rows}, the rows of its lm_head"
        whole = f"{config.size('vocab_size')} for a draft over the whole vocabulary"
        do = f'write "draft_vocab_size": {rows if head_rows else whole}'
        found.append(_crash("draft-vocab-key-missing", place, "draft_vocab_size", do, draft_class=rules.draft_class))
    if rules.max_layers is not None and layers != rules.max_layers:
        do = f"use {rules.engine} {deeper_since} or newer" if deeper_since else "train a draft of one layer"
        before, name = f" before {deeper_since}" if deeper_since else "", rules.draft_class
        facts = {"draft_class": name, "before": before, "layers": layers}
        found.append(
            said("layers-unsupported", f"{place}: num_hidden_layers", ("num_hidden_layers",), do=do, facts=facts)
        )
    if rules.checks_activation and act != "silu":
        found.append(_crash("activation-unsupported", place, "hidden_act", act=act))
    if config.has("target_hidden_size") and config.get("target_hidden_size") is None and not rules.takes_null_width:
        found.append(_crash("target-hidden-size-null", place, "target_hidden_size"))
    if rules.needs_q_lora_rank and config.get("q_lora_rank") is None:
        found.append(_crash("q-lora-rank-missing", place, "q_lora_rank"))
    has_aux = config.get("eagle_config.use_aux_hidden_state", True) is not False
    if rules.skips_square_fc and has_aux and width and width == config.size("hidden_size"):
        found.append(said("fc-skipped", place, width=width, engine=rules.engine))
    return found


def _crash(code: str, place: str, key: str, do: str | None = None, **facts: object) -> Reason:
    return said(code, f"{place}: {key}", (key,), do=do, facts=facts)


def position_reasons(
    engine: EngineVersion,
    rules: LoadRules,
    config: SeenConfig,
    reading: DraftReading | None,
    transformers: str,
    where: str,
) -> list[Reason]:
    """A RoPE spelling that is not read, a kind that is not known, and a sliding window that is not kept.

    Args:
        transformers: version that the engine runs on; "" = it reads RoPE itself.
    """
    if reading is None:
        return []
    found, rope, window = list[Reason](), reading.spec.rope, reading.spec.sliding_window
    facts: dict[str, object]
    # transformers 4 keeps rope_parameters as an attribute that no code reads; 5 converts either spelling to the other
    is_alone = config.has("rope_parameters") and config.get("rope_theta") is None and not config.get("rope_scaling")
    is_unread = is_alone and bool(transformers) and not at_least(transformers, "5")
    if is_unread and (rope.theta != 10000.0 or rope.scaling is not None):
        do = Convert(draft=where, to=rules.engine, remark="writes both spellings")
        weight: DamageSeverity = "severe" if rope.scaling else "mild"
        facts = {"theta": rope.theta, "label": engine.label, "transformers": transformers}
        place = f"{where}: config.json: rope_parameters"
        found.append(said("rope-spelling-unread", place, ("rope_parameters",), do=do, severity=weight, facts=facts))
    kind = str((rope.scaling or {}).get("rope_type", "default"))
    since = dict(rules.refused_rope).get(kind)
    if since is not None and not (since and at_least(engine.version, since)):
        place, also = f"{where}: config.json: rope_type", f", or {rules.engine} {since} or newer" if since else ""
        facts = {"kind": kind, "label": engine.label, "since": also}
        found.append(said("rope-type-refused", place, ("rope_type",), facts=facts))
    if window is not None and rules.window == "ignored":
        place = f"{where}: config.json: sliding_window"
        facts = {"window": window, "label": engine.label}
        found.append(said("sliding-window-ignored", place, ("sliding_window",), facts=facts))
    return found
