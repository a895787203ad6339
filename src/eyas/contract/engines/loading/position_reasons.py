"""Positions: which spelling of RoPE an engine reads, and whether it honours the draft's sliding window."""

from eyas.contract.engines.loading.ledger import DamageSeverity, Reason, reason
from eyas.contract.engines.loading.load_rules import LoadRules
from eyas.contract.engines.loading.seen_config import SeenConfig
from eyas.contract.engines.version import EngineVersion, at_least
from eyas.contract.spec.draft_reading import DraftReading
from eyas.diagnostic import Convert


def position_reasons(
    engine: EngineVersion, rules: LoadRules, config: SeenConfig, reading: DraftReading | None, where: str
) -> list[Reason]:
    """Reasons for a RoPE spelling that is not read and a window that is not kept."""
    return [*_rope(engine, config, reading, where), *_window(engine, rules, reading, where)]


def needs_window_flag(engine: EngineVersion, rules: LoadRules) -> bool:
    """SGLang's Llama draft takes its window from a flag, not from the config (0.5.12 and newer)."""
    return engine.engine == "sglang" and rules.kind == "llama" and at_least(engine.rules, "0.5.12")


def _rope(engine: EngineVersion, config: SeenConfig, reading: DraftReading | None, where: str) -> list[Reason]:
    # transformers 4.57 (SGLang 0.5.9) keeps rope_parameters as an attribute that nobody reads; transformers 5
    # converts either spelling into the other.
    if engine.engine != "sglang" or at_least(engine.rules, "0.5.10") or reading is None:
        return []
    if not config.has("rope_parameters") or config.get("rope_theta") is not None or config.get("rope_scaling"):
        return []
    rope = reading.spec.rope
    if rope.theta == 10000.0 and rope.scaling is None:
        return []
    severity: DamageSeverity = "severe" if rope.scaling else "mild"
    return [
        reason(
            code="rope-spelling-unread",
            verdict="silent-damage",
            severity=severity,
            what=f"rope_parameters alone (theta {rope.theta:g}) is not read by this version",
            where=f"{where}: config.json: rope_parameters",
            why="SGLang 0.5.9 runs on transformers 4.57: theta falls back to 10000 and the scaling is lost",
            do=Convert(draft=where, to="sglang", remark="writes both spellings"),
            items=("rope_parameters",),
        )
    ]


def _window(engine: EngineVersion, rules: LoadRules, reading: DraftReading | None, where: str) -> list[Reason]:
    window = reading.spec.sliding_window if reading else None
    if window is None or rules.sliding or needs_window_flag(engine, rules):
        return []
    return [
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
    ]
