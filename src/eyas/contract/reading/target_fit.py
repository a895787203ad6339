"""Draft and target beside each other: sizes, tapped layers, tokenizer, chat template, RoPE, a quantised head."""

from collections.abc import Mapping

from eyas.contract.spec.draft_spec import DraftReading, DraftSpec
from eyas.contract.spec.target_spec import TargetSpec
from eyas.diagnostic import Diagnostic, finding

_RIGHT_TARGET = "give the target it was trained for"


def size_findings(spec: DraftSpec, target: TargetSpec, where: str) -> list[Diagnostic]:
    """Whether a draft fits its target in size: widths, vocabulary, tapped layers."""
    findings = []
    if spec.target_hidden_size != target.hidden_size:
        what = f"the draft takes states of width {spec.target_hidden_size}, the target's are {target.hidden_size}"
        why = f"fc and the aux states do not fit ({spec.provenance.get('target_hidden_size', '')})"
        either = (_RIGHT_TARGET, "write target_hidden_size")
        findings.append(finding("target-hidden-size", "fatal", what, where, why, either))
    if target.vocab_size is not None and spec.vocab_size != target.vocab_size:
        what = f"the draft's vocabulary is {spec.vocab_size}, the target's {target.vocab_size}"
        why = "embedding, head and maps are sized by it (padding included): engines crash or misread ids"
        findings.append(finding("vocab-size", "error", what, where, why, (_RIGHT_TARGET, "correct vocab_size")))
    if spec.embedding == "target" and spec.hidden_size != target.hidden_size:
        what = f"no embed_tokens.weight, and the target's is {target.hidden_size} wide, the draft {spec.hidden_size}"
        why, do = "the target's embedding cannot be shared", "export the draft with its own embedding"
        findings.append(finding("embedding-missing", "fatal", what, where, why, do))
    taps = spec.aux_boundaries
    if taps is not None and (max(taps) > target.num_layers or min(taps) < 0):
        what = f"aux boundaries {list(taps)}, but the target has {target.num_layers} layers"
        why, either = (
            "an engine captures fewer states than fc takes, or crashes",
            (_RIGHT_TARGET, "correct the layer ids"),
        )
        findings.append(finding("aux-out-of-range", "fatal", what, where, why, either))
    if taps is not None and list(taps) != sorted(set(taps)):
        what = f"aux boundaries {list(taps)} are not increasing"
        why = "engines capture from low to high (vLLM sorts them, SGLang walks the layers): fc reads another order"
        do = "sort the ids and permute fc's column blocks the same way"
        findings.append(finding("aux-unsorted", "error", what, where, why, do))
    return findings


def fit_findings(reading: DraftReading, target: TargetSpec) -> list[Diagnostic]:
    """Findings about the pair beyond sizes."""
    parts = (_tokenizer, _template, _identity, _rope, _head)
    return [found for part in parts for found in part(reading, target)]


def _tokenizer(reading: DraftReading, target: TargetSpec) -> list[Diagnostic]:
    recorded = _recorded(reading, "tokenizer_hash")
    if recorded is None or target.tokenizer is None:
        return []
    if _recorded(reading, "tokenizer_file_hash") == target.tokenizer.file_hash:
        return []
    found = target.tokenizer.hash  # the file is parsed here, once
    if recorded == found:
        return []
    what = "the target's tokenizer is not the one the draft was made for"
    why = f"fingerprint {found}, recorded {recorded}: the same ids may mean other tokens"
    return [finding("tokenizer-differs", "error", what, reading.checkpoint.where, why, _RIGHT_TARGET)]


def _template(reading: DraftReading, target: TargetSpec) -> list[Diagnostic]:
    recorded = _recorded(reading, "template_hash")
    if recorded is None or target.template_hash is None or recorded == target.template_hash:
        return []
    what = "the target's chat template is not the one the draft was made for"
    why = f"fingerprint {target.template_hash}, recorded {recorded}: prompts look different from those in training"
    do = ("serve with the template of training", "measure with `eyas eval`")
    return [finding("template-differs", "warning", what, reading.checkpoint.where, why, do)]


def _identity(reading: DraftReading, target: TargetSpec) -> list[Diagnostic]:
    recorded = _recorded(reading, "fingerprint")
    if recorded is None or not target.fingerprint or recorded == target.fingerprint:
        return []
    what = "the target's config is not the one the draft was made for"
    why = f"fingerprint {target.fingerprint}, recorded {recorded}: a fine-tune or another precision may be fine"
    return [finding("target-differs", "note", what, reading.checkpoint.where, why)]


def _rope(reading: DraftReading, target: TargetSpec) -> list[Diagnostic]:
    ours, theirs = reading.spec.rope, target.rope
    if (ours.theta, ours.scaling) == (theirs.theta, theirs.scaling):
        return []
    # The official heads run theta 10000 under targets with 500000 and scaling: a difference is not a fault.
    what = (
        f"RoPE of the draft: theta {ours.theta:g}, {_scaling(ours.scaling)}; of the target: theta"
        f" {theirs.theta:g}, {_scaling(theirs.scaling)}"
    )
    why = "right if the draft was trained so (many are); headers cannot show it: measure with `eyas infer`"
    return [finding("rope-differs-from-target", "note", what, reading.checkpoint.where, why)]


def _scaling(scaling: object) -> str:
    return f"scaling {scaling['rope_type']}" if isinstance(scaling, dict) and "rope_type" in scaling else "no scaling"


def _head(reading: DraftReading, target: TargetSpec) -> list[Diagnostic]:
    if target.is_head_quantized is not True or reading.spec.head != "target":
        return []
    what = "the draft borrows the target's lm_head, which is quantised"
    why = "engines share the head by its .weight; a quantised one may have none, or other numbers"
    do = ("serve a target whose lm_head is left unquantised", "export the draft with its own head")
    return [finding("shared-head-quantised", "warning", what, reading.checkpoint.where, why, do)]


def _recorded(reading: DraftReading, key: str) -> str | None:
    """What eyas.json beside the draft says of the target it was made for."""
    sidecar = reading.checkpoint.extra.get("eyas.json")
    target = sidecar.get("target") if isinstance(sidecar, Mapping) else None
    value = target.get(key) if isinstance(target, Mapping) else None
    return value if isinstance(value, str) else None
