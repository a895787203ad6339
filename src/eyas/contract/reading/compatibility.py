"""Draft and target beside each other, beyond sizes: tokenizer, chat template, RoPE, a quantised head. No engines."""

from collections.abc import Mapping

from eyas.contract.spec.draft_reading import DraftReading
from eyas.contract.spec.target_spec import TargetSpec
from eyas.diagnostic import Diagnostic


def compatibility(reading: DraftReading, target: TargetSpec) -> list[Diagnostic]:
    """Findings about the pair that `target_findings` does not make."""
    return [
        *_tokenizer(reading, target),
        *_template(reading, target),
        *_identity(reading, target),
        *_rope(reading, target),
        *_head(reading, target),
    ]


def _tokenizer(reading: DraftReading, target: TargetSpec) -> list[Diagnostic]:
    recorded = _recorded(reading, "tokenizer_hash")
    if recorded is None or target.tokenizer is None:
        return []
    if _recorded(reading, "tokenizer_file_hash") == target.tokenizer.file_hash:
        return []
    found = target.tokenizer.hash  # the file is parsed here, once
    if recorded == found:
        return []
    return [
        Diagnostic(
            code="tokenizer-differs",
            severity="error",
            what="the target's tokenizer is not the one the draft was made for",
            where=reading.checkpoint.where,
            why=f"fingerprint {found}, recorded {recorded}: the same ids may mean other tokens",
            do="give the target it was trained for",
        )
    ]


def _template(reading: DraftReading, target: TargetSpec) -> list[Diagnostic]:
    recorded = _recorded(reading, "template_hash")
    if recorded is None or target.template_hash is None or recorded == target.template_hash:
        return []
    return [
        Diagnostic(
            code="template-differs",
            severity="warning",
            what="the target's chat template is not the one the draft was made for",
            where=reading.checkpoint.where,
            why=f"fingerprint {target.template_hash}, recorded {recorded}: prompts look otherwise than in training",
            do="serve with the template of training, or measure with `eyas eval`",
        )
    ]


def _identity(reading: DraftReading, target: TargetSpec) -> list[Diagnostic]:
    recorded = _recorded(reading, "fingerprint")
    if recorded is None or not target.fingerprint or recorded == target.fingerprint:
        return []
    return [
        Diagnostic(
            code="target-differs",
            severity="note",
            what="the target's config is not the one the draft was made for",
            where=reading.checkpoint.where,
            why=f"fingerprint {target.fingerprint}, recorded {recorded}: a fine-tune or another precision may be fine",
        )
    ]


def _rope(reading: DraftReading, target: TargetSpec) -> list[Diagnostic]:
    ours, theirs = reading.spec.rope, target.rope
    if (ours.theta, ours.scaling) == (theirs.theta, theirs.scaling):
        return []
    # The official heads run theta 10000 under targets with 500000 and scaling: a difference is no fault.
    return [
        Diagnostic(
            code="rope-differs-from-target",
            severity="note",
            what=f"RoPE of the draft: theta {ours.theta:g}, {_scaling(ours.scaling)}; of the target: theta"
            f" {theirs.theta:g}, {_scaling(theirs.scaling)}",
            where=reading.checkpoint.where,
            why="right if the draft was trained so (many are); headers cannot tell, only numbers can: `eyas infer`",
        )
    ]


def _scaling(scaling: object) -> str:
    return f"scaling {scaling['rope_type']}" if isinstance(scaling, dict) and "rope_type" in scaling else "no scaling"


def _head(reading: DraftReading, target: TargetSpec) -> list[Diagnostic]:
    if target.is_head_quantized is not True or reading.spec.head != "target":
        return []
    return [
        Diagnostic(
            code="shared-head-quantised",
            severity="warning",
            what="the draft borrows the target's lm_head, which is quantised",
            where=reading.checkpoint.where,
            why="engines share the head by its .weight; a quantised one may have none, or other numbers",
            do="serve a target whose lm_head is left unquantised, or export the draft with its own head",
        )
    ]


def _recorded(reading: DraftReading, key: str) -> str | None:
    """What eyas.json beside the draft says of the target it was made for."""
    sidecar = reading.checkpoint.extra.get("eyas.json")
    target = sidecar.get("target") if isinstance(sidecar, Mapping) else None
    value = target.get(key) if isinstance(target, Mapping) else None
    return value if isinstance(value, str) else None
