"""Whether a draft fits its target in size: widths, vocabulary, tapped layers. Files beside it: `compatibility`."""

from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.target_spec import TargetSpec
from eyas.diagnostic import Diagnostic, finding


def target_findings(spec: DraftSpec, target: TargetSpec, where: str) -> list[Diagnostic]:
    """Findings about the pair."""
    findings = []
    if spec.target_hidden_size != target.hidden_size:
        findings.append(
            finding(
                "target-hidden-size",
                "fatal",
                f"the draft takes states of width {spec.target_hidden_size}, the target's are {target.hidden_size}",
                where,
                f"fc and the aux states do not fit ({spec.provenance.get('target_hidden_size', '')})",
                "give the target it was trained for, or write target_hidden_size",
            )
        )
    if target.vocab_size is not None and spec.vocab_size != target.vocab_size:
        findings.append(
            finding(
                "vocab-size",
                "error",
                f"the draft's vocabulary is {spec.vocab_size}, the target's {target.vocab_size}",
                where,
                "embedding, head and maps are sized by it (padding included): engines crash or misread ids",
                "give the target it was trained for, or correct vocab_size",
            )
        )
    if spec.embedding == "target" and spec.hidden_size != target.hidden_size:
        findings.append(
            finding(
                "embedding-missing",
                "fatal",
                f"no embed_tokens.weight, and the target's is {target.hidden_size} wide, the draft {spec.hidden_size}",
                where,
                "the target's embedding cannot be shared",
                "export the draft with its own embedding",
            )
        )
    return findings + _aux(spec, target, where)


def _aux(spec: DraftSpec, target: TargetSpec, where: str) -> list[Diagnostic]:
    taps = spec.aux_boundaries
    if taps is None:
        return []
    findings = []
    if max(taps) > target.num_layers or min(taps) < 0:
        findings.append(
            finding(
                "aux-out-of-range",
                "fatal",
                f"aux boundaries {list(taps)}, but the target has {target.num_layers} layers",
                where,
                "an engine captures fewer states than fc takes, or crashes",
                "give the target it was trained for, or correct the layer ids",
            )
        )
    if list(taps) != sorted(set(taps)):
        findings.append(
            finding(
                "aux-unsorted",
                "error",
                f"aux boundaries {list(taps)} are not increasing",
                where,
                "engines capture from low to high (vLLM sorts them, SGLang walks the layers): fc gets another order",
                "sort the ids and permute fc's column blocks the same way",
            )
        )
    return findings
