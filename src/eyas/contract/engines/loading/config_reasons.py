"""What an engine cannot do with a draft's config, before any weight is read: crashes, RoPE spelling, window."""

from eyas.contract.engines.loading.ledger import Reason, reason
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
    place, found = f"{where}: config.json", list[Reason]()

    def crash(code: str, key: str, what: str, why: str, do: str) -> None:
        found.append(
            reason(code=code, verdict="crash", what=what, where=f"{place}: {key}", why=why, do=do, items=(key,))
        )

    if rules.needs_draft_vocab_key and not config.has("draft_vocab_size"):
        crash(
            "draft-vocab-key-missing",
            "draft_vocab_size",
            "config.json has no draft_vocab_size",
            f"{rules.draft_class} reads config.draft_vocab_size: AttributeError (null would borrow the target's head)",
            f'write "draft_vocab_size": {head_rows}, the rows of its lm_head'
            if head_rows
            else f'write "draft_vocab_size": {config.size("vocab_size")} for a draft over the whole vocabulary',
        )
    layers = config.size("num_hidden_layers")
    if rules.max_layers is not None and layers != rules.max_layers:
        crash(
            "layers-unsupported",
            "num_hidden_layers",
            f"{layers} layers",
            f"{rules.draft_class}{f' before {deeper_since}' if deeper_since else ''} raises ValueError: EAGLE3"
            " currently only supports 1 layer",
            f"use {rules.engine} {deeper_since} or newer" if deeper_since else "train a draft of one layer",
        )
    if rules.checks_activation and config.get("hidden_act", "silu") != "silu":
        crash(
            "activation-unsupported",
            "hidden_act",
            f"hidden_act is {config.get('hidden_act')!r}",
            "the MLP class raises ValueError: only silu is supported",
            "train with silu; a different activation cannot be served",
        )
    if config.has("target_hidden_size") and config.get("target_hidden_size") is None and not rules.takes_null_width:
        crash(
            "target-hidden-size-null",
            "target_hidden_size",
            "target_hidden_size is null",
            "the class multiplies it by the number of aux states: TypeError",
            "remove the key, or write the target's hidden size",
        )
    if rules.needs_q_lora_rank and config.get("q_lora_rank") is None:
        crash(
            "q-lora-rank-missing",
            "q_lora_rank",
            "no q_lora_rank",
            "the MLA draft layer raises ValueError without it",
            "train the draft with a q_lora_rank",
        )
    width = num_aux_states(rules, config) * config.target_hidden
    has_aux = config.get("eagle_config.use_aux_hidden_state", True) is not False
    if rules.skips_square_fc and has_aux and width and width == config.size("hidden_size"):
        found.append(
            reason(
                code="fc-skipped",
                verdict="silent-damage",
                severity="fatal",
                what=f"fc takes {width} and gives {width}: {rules.engine} skips it",
                where=place,
                why="fc runs only if the widths of its input and of the embedding differ; here they are equal",
                do="train with more than one aux state",
            )
        )
    return found


def position_reasons(
    engine: EngineVersion,
    rules: LoadRules,
    config: SeenConfig,
    reading: DraftReading | None,
    transformers: str,
    where: str,
) -> list[Reason]:
    """A RoPE spelling that is not read, and a sliding window that is not kept.

    Args:
        transformers: version that the engine runs on; "" = it reads RoPE itself.
    """
    if reading is None:
        return []
    found, rope, window = list[Reason](), reading.spec.rope, reading.spec.sliding_window
    # transformers 4 keeps rope_parameters as an attribute that no code reads; 5 converts either spelling to the other
    is_alone = config.has("rope_parameters") and config.get("rope_theta") is None and not config.get("rope_scaling")
    is_unread = is_alone and bool(transformers) and not at_least(transformers, "5")
    if is_unread and (rope.theta != 10000.0 or rope.scaling is not None):
        found.append(
            reason(
                code="rope-spelling-unread",
                verdict="silent-damage",
                severity="severe" if rope.scaling else "mild",
                what=f"rope_parameters alone (theta {rope.theta:g}) is not read by this version",
                where=f"{where}: config.json: rope_parameters",
                why=f"{engine.label} runs on transformers {transformers}: theta falls back to 10000 and the scaling is"
                " lost",
                do=Convert(draft=where, to=rules.engine, remark="writes both spellings"),
                items=("rope_parameters",),
            )
        )
    if window is not None and rules.window == "ignored":
        found.append(
            reason(
                code="sliding-window-ignored",
                verdict="silent-damage",
                severity="mild",
                what=f"the draft's sliding window of {window} tokens is not kept: {engine.label} attends to everything",
                where=f"{where}: config.json: sliding_window",
                why="texts longer than the window are drafted from keys that training never showed",
                do=f"keep texts below {window} tokens, or use a version that honours the window",
                items=("sliding_window",),
            )
        )
    return found
