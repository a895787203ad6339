"""Why a draft class raises in its constructor, before any weight is read."""

from eyas.contract.engines.loading.ledger import Reason, reason
from eyas.contract.engines.loading.load_rules import LoadRules
from eyas.contract.engines.loading.seen_config import SeenConfig


def start_reasons(rules: LoadRules, config: SeenConfig, where: str, head_rows: int | None = None) -> list[Reason]:
    """Every crash of the constructor that the config alone shows.

    Args:
        head_rows: of the draft's own lm_head, for what to write; None = it has none.
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
        newer = " before 0.5.12" if rules.kind == "llama" else ""
        crash(
            "layers-unsupported",
            "num_hidden_layers",
            f"{layers} layers",
            f"{rules.draft_class}{newer} raises ValueError: EAGLE3 currently only supports 1 layer",
            "use a version with multi-layer drafts" if rules.kind == "llama" else "train a draft of one layer",
        )
    if config.get("hidden_act", "silu") != "silu":
        crash(
            "activation-unsupported",
            "hidden_act",
            f"hidden_act is {config.get('hidden_act')!r}",
            "the MLP class raises ValueError: only silu is supported",
            "train with silu; a different activation cannot be served",
        )
    if config.has("target_hidden_size") and config.get("target_hidden_size") is None and _reads_null(rules):
        crash(
            "target-hidden-size-null",
            "target_hidden_size",
            "target_hidden_size is null",
            "the class multiplies it by the number of aux states: TypeError",
            "remove the key, or write the target's hidden size",
        )
    if rules.kind == "mla" and rules.engine == "sglang" and config.get("q_lora_rank") is None:
        crash(
            "q-lora-rank-missing",
            "q_lora_rank",
            "no q_lora_rank",
            "the MLA draft layer raises ValueError without it",
            "train the draft with a q_lora_rank",
        )
    found += _fc_skipped(rules, config, place)
    return found


def _reads_null(rules: LoadRules) -> bool:
    # SGLang's MLA class writes `getattr(...) or hidden_size`; all others take the value as it is
    return not (rules.engine == "sglang" and rules.kind == "mla")


def _fc_skipped(rules: LoadRules, config: SeenConfig, place: str) -> list[Reason]:
    from eyas.contract.engines.loading.runtime_parameters import num_aux_states

    width = num_aux_states(rules, config) * config.target_hidden
    if rules.engine != "sglang" or width != config.size("hidden_size") or not width:
        return []
    return [
        reason(
            code="fc-skipped",
            verdict="silent-damage",
            severity="fatal",
            what=f"fc takes {width} and gives {width}: SGLang skips it",
            where=place,
            why="fc runs only if the widths of its input and of the embedding differ; here they are equal",
            do="train with more than one aux state",
        )
    ]
