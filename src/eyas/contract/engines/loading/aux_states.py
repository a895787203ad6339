"""Which aux states an engine captures for a draft, and what happens if the draft was trained on others."""

from collections.abc import Sequence
from dataclasses import dataclass

from eyas.contract.engines.loading.ledger import DamageSeverity, Reason, said
from eyas.contract.engines.loading.seen_config import SeenConfig
from eyas.contract.engines.loading.target_hooks import TargetHook
from eyas.contract.spec.draft_spec import DraftReading
from eyas.contract.spec.layer_ids import default_boundaries
from eyas.contract.spec.target_spec import TargetSpec
from eyas.diagnostic import Edit, Remedies

TOP_IDS, NESTED_IDS = "eagle_aux_hidden_state_layer_ids", "eagle_config.eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxCapture:
    """What is tapped.

    Attributes:
        boundaries: in the order in which the states are concatenated; None when the target's depth is unknown.
        source: where it came from, for a person.
        is_off: the engine captures no aux states at all.
    """

    boundaries: tuple[int, ...] | None
    source: str
    is_off: bool = False


def layer_ids_at(config: SeenConfig, path: str) -> tuple[int, ...] | None:
    """The list of integers under `path`; None when there is nothing else."""
    value = config.get(path)
    if isinstance(value, list) and value and all(type(i) is int for i in value):
        return tuple(value)
    return None


def default_capture(hook: TargetHook, num_layers: int | None, source: str) -> AuxCapture:
    """What is tapped when the draft names no layers."""
    tapped = None if num_layers is None else tuple(b + hook.default_shift for b in default_boundaries(num_layers))
    return AuxCapture(boundaries=tapped, source=f"{source}: the default of the target class")


def aux_reasons(
    via: str,
    capture: AuxCapture,
    hook: TargetHook,
    reading: DraftReading | None,
    target: TargetSpec | None,
    num_aux: int,
    config: SeenConfig,
    where: str,
    remedy: Remedies,
    has_fc: bool,
) -> list[Reason]:
    """Reasons from comparing the tapped boundaries with the trained ones and with the width of fc.

    Args:
        via: engine and runner, for a person.
        num_aux: aux states that fc is built for.
        remedy: what to write where so that this engine taps the trained boundaries.
        has_fc: the draft holds an fc, so it was trained on aux states.
    """
    place = f"{where}: config.json"
    if capture.is_off and not has_fc:
        return _wrong_width(target, config, place)
    if capture.is_off:
        do = Edit("eagle_config.use_aux_hidden_state", True, " if the draft was trained as EAGLE-3")
        return [said("aux-capture-off", place, do=do)]
    tapped = capture.boundaries
    if tapped is None:
        return []
    reasons = []
    # an engine passes over ids out of range without a word
    ends = target.num_layers + hook.taps_end if target is not None else None
    reached = [b for b in tapped if ends is None or 0 <= b < ends]
    facts: dict[str, object] = {"via": via, "source": capture.source, "tapped": list(tapped)}
    if len(reached) != num_aux:
        lost = f" ({len(tapped) - len(reached)} of them past the last layer)" if len(reached) < len(tapped) else ""
        reasons.append(said("aux-count", place, reached=len(reached), num_aux=num_aux, lost=lost, facts=facts))
    trained = reading.spec.aux_boundaries if reading else None
    if reading is not None and trained is not None and tuple(trained) != tapped:
        facts |= {"trained": list(trained), "basis": reading.spec.provenance.get("aux_boundaries", "")}
        reasons.append(said("aux-layers-differ", place, do=remedy, severity=_severity(trained, tapped), facts=facts))
    return reasons + _wrong_width(target, config, place)


def _wrong_width(target: TargetSpec | None, config: SeenConfig, place: str) -> list[Reason]:
    if target is None or target.hidden_size == config.target_hidden:
        return []
    widths = {"width": target.hidden_size, "built": config.target_hidden}
    return [said("target-hidden-size", f"{place}: target_hidden_size", facts=widths)]


def _severity(trained: Sequence[int], tapped: Sequence[int]) -> DamageSeverity:
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
