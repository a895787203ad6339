"""What it costs when an engine taps other layers than the draft was trained on, or another number of them."""

from collections.abc import Sequence

from eyas.contract.engines.loading.aux_capture import AuxCapture
from eyas.contract.engines.loading.ledger import DamageSeverity, Reason, reason
from eyas.contract.engines.loading.seen_config import SeenConfig
from eyas.contract.engines.version import EngineVersion
from eyas.contract.spec.draft_reading import DraftReading
from eyas.contract.spec.target_spec import TargetSpec
from eyas.diagnostic import Convert, Edit, Remedies


def aux_reasons(
    engine: EngineVersion,
    runner: str | None,
    capture: AuxCapture,
    reading: DraftReading | None,
    target: TargetSpec | None,
    num_aux: int,
    config: SeenConfig,
    where: str,
) -> list[Reason]:
    """Reasons from comparing the tapped boundaries with the trained ones and with the width of fc."""
    if capture.is_off:
        return _off(engine, where)
    boundaries = capture.boundaries
    if boundaries is None:
        return []
    reasons = []
    reached = _reached(engine, boundaries, target, config)
    if len(reached) != num_aux:
        reasons.append(_width(engine, boundaries, reached, num_aux, capture, where))
    trained = reading.spec.aux_boundaries if reading else None
    if trained is not None and tuple(trained) != tuple(boundaries):
        reasons.append(_elsewhere(engine, runner, trained, boundaries, capture, reading, where))
    if target is not None and target.hidden_size != config.target_hidden:
        reasons.append(_hidden(target.hidden_size, config, where))
    return reasons


def _reached(
    engine: EngineVersion, boundaries: Sequence[int], target: TargetSpec | None, config: SeenConfig
) -> tuple[int, ...]:
    """Those that are really captured: out-of-range ids are passed over without a word."""
    if target is None:
        return tuple(boundaries)
    last = target.num_layers
    # SGLang captures before layer i: nothing follows the last layer, except in gpt_oss since 0.5.17
    can_end = engine.engine == "vllm" or target.text_model_type == "gpt_oss"
    return tuple(b for b in boundaries if 0 <= b < last or (b == last and can_end))


def _off(engine: EngineVersion, where: str) -> list[Reason]:
    return [
        reason(
            code="aux-capture-off",
            verdict="silent-damage",
            severity="fatal",
            what="eagle_config.use_aux_hidden_state is false",
            where=f"{where}: config.json",
            why="no aux states are captured and fc is not applied: the draft sees the last hidden state instead",
            do=Edit("eagle_config.use_aux_hidden_state", True, " if the draft was trained as EAGLE-3"),
        )
    ]


def _width(
    engine: EngineVersion,
    boundaries: Sequence[int],
    reached: Sequence[int],
    num_aux: int,
    capture: AuxCapture,
    where: str,
) -> Reason:
    lost = f" ({len(boundaries) - len(reached)} of them past the last layer)" if len(reached) < len(boundaries) else ""
    return reason(
        code="aux-count",
        verdict="crash",
        what=f"{len(reached)} aux states are captured, fc is built for {num_aux}",
        where=f"{where}: config.json",
        why=f"{engine.label} taps {list(boundaries)}{lost} from {capture.source}; the first forward pass fails",
        do="write the layer ids where this engine reads them, and num_aux_hidden_states to match",
    )


def _hidden(target_hidden: int, config: SeenConfig, where: str) -> Reason:
    return reason(
        code="target-hidden-size",
        verdict="crash",
        what=f"the target's states are {target_hidden} wide, fc is built for {config.target_hidden}",
        where=f"{where}: config.json: target_hidden_size",
        why="the first forward pass fails on the width",
        do="give the target that the draft was trained for, or write target_hidden_size",
    )


def _elsewhere(
    engine: EngineVersion,
    runner: str | None,
    trained: Sequence[int],
    tapped: Sequence[int],
    capture: AuxCapture,
    reading: DraftReading | None,
    where: str,
) -> Reason:
    severity = _severity(engine, trained, tapped)
    via = f"{engine.label}{f' ({runner} runner)' if runner else ''}"
    basis = reading.spec.provenance.get("aux_boundaries", "") if reading else ""
    return reason(
        code="aux-layers-differ",
        verdict="silent-damage",
        severity=severity,
        what=f"taps boundaries {list(tapped)}, the draft was trained on {list(trained)}",
        where=f"{where}: config.json",
        why=f"{via}: {capture.source}; trained: {basis}. No log line says so",
        do=_do(engine, runner, trained, where),
    )


def _severity(engine: EngineVersion, trained: Sequence[int], tapped: Sequence[int]) -> DamageSeverity:
    if sorted(trained) == sorted(tapped):
        return "severe"  # the right states in another order
    if len(trained) == len(tapped):
        off = {t - b for t, b in zip(sorted(tapped), sorted(trained), strict=True)}
        if off == {1}:
            # sgl-project/sglang#25454: about 0.10 of accept length
            return "mild"
        if off == {-1}:
            # vllm-project/vllm#43671: 10 % against 45 % at position 0
            return "severe"
    # vllm-project/vllm#50170: accept length 1.04 with the default layers instead of the trained ones
    return "fatal"


def _do(engine: EngineVersion, runner: str | None, trained: Sequence[int], where: str) -> Remedies:
    if engine.engine == "vllm":
        both = ", which both runners read" if runner else ""
        ids = Edit("eagle_aux_hidden_state_layer_ids", sorted(trained), f" at the top level{both}")
        return ids, Convert(draft=where, to="vllm")
    return Convert(draft=where, to="sglang", remark=f"writes ids that SGLang reads as {list(trained)}")
