"""What is known to go wrong in the trainers that write drafts, where a checkpoint can show it, and what it cannot show.

Source: reading of ModelOpt (double norm since bdd10c2d), SpecForge (`norm_output` with pre-norm feedback), TorchSpec.
"""

from eyas.contract.spec.draft_reading import DraftReading
from eyas.diagnostic import Diagnostic


def trainer_findings(reading: DraftReading) -> list[Diagnostic]:
    """Findings that follow from who wrote the draft."""
    spec, where, config = reading.spec, reading.checkpoint.where, reading.checkpoint.config
    findings = []
    if reading.dialect == "modelopt" and "eyas.json" not in reading.checkpoint.extra:
        findings.append(
            Diagnostic(
                code="modelopt-double-norm",
                severity="note",
                what="a ModelOpt draft: it may have been trained with a second norm on the hidden states",
                where=where,
                why="since December 2025 its Hugging Face path norms them with input_layernorm before hidden_norm;"
                " names and shapes are the same, only numbers can show it",
                do="compare accept length in training and by `eyas eval`; a large gap is this",
            )
        )
    if reading.dialect == "sglang" and spec.feedback == "post-norm" and "eyas.json" not in reading.checkpoint.extra:
        # SpecForge's export writes both spellings of RoPE; others that write midlayer.* do not
        is_specforge = "rope_parameters" in config and "rope_scaling" in config and spec.embedding == "target"
        findings.append(
            Diagnostic(
                code="specforge-norm-output",
                severity="warning" if is_specforge else "note",
                what="norm_output is true in a draft that SpecForge"
                + (" wrote" if is_specforge else " may have written"),
                where=where,
                why="SpecForge trains with the pre-norm state fed back even then; engines feed back the normed one",
                do="compare both with `eyas infer`, or set norm_output to false and measure",
            )
        )
    return findings
