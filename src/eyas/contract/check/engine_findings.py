"""Findings made of a ledger: one per reason, and what the other runner of vLLM would do differently."""

import re
from collections.abc import Sequence
from dataclasses import replace

from eyas.contract.engines.loading.ledger import Ledger, Reason, reason, verdict_of
from eyas.contract.engines.version import EngineVersion
from eyas.diagnostic import Diagnostic
from eyas.talk import counted

_LATER_LAYER = re.compile(r"(?:model\.)?layers\.[1-9]\d*\.")


def engine_findings(ledger: Ledger, other: Ledger | None, where: str) -> list[Diagnostic]:
    """All that one engine has to say about a draft."""
    label = ledger.engine.label
    findings = [replace(reason.diagnostic, engine=label) for reason in ledger.reasons]
    findings += _notes(ledger, where, label)
    if other is not None:
        findings += _runner(ledger, other, where, label)
    if ledger.engine.is_approximated:
        findings.append(_approximated(ledger.engine, where, label))
    return findings


def with_random_embedding(ledger: Ledger, where: str) -> Ledger:
    """The ledger after `--deep` has shown that the draft's own embedding is noise, where the engine uses it."""
    uses = any(p.name == "model.embed_tokens.weight" and p.state == "filled" for p in ledger.parameters)
    if not ledger.starts or not uses:
        return ledger
    noise = reason(
        code="embedding-random-used",
        verdict="silent-damage",
        severity="fatal",
        what="the draft's random embedding is used",
        where=f"{where}: embed_tokens.weight",
        why="it differs from the target's, so this engine keeps it as the draft's own; nothing is logged as wrong",
        do="drop embed_tokens.weight from the checkpoint: the target's is then shared",
        items=("embed_tokens.weight",),
    )
    reasons = (*ledger.reasons, noise)
    verdict, severity = verdict_of(reasons)
    return replace(ledger, reasons=reasons, verdict=verdict, severity=severity)


def without_consequences(findings: Sequence[Diagnostic]) -> list[Diagnostic]:
    """`findings` without the engines' repetitions of one missing or wrong number in config.json."""
    causes = {finding.code for finding in findings if finding.engine is None}

    def repeats(finding: Diagnostic) -> bool:
        if "draft-vocab-size-missing" in causes:
            is_size = finding.code == "loader-crash" and set(finding.items) <= {"lm_head.weight", "d2t"}
            if is_size or finding.code == "draft-vocab-key-missing":
                return True
        if "layers-overstated" not in causes:
            return False
        is_deep = all(_LATER_LAYER.match(name) for name in finding.items)
        return finding.code == "layers-unsupported" or (finding.code == "parameters-unfilled" and is_deep)

    return [f for f in findings if f.engine is None or not repeats(f)]


def _note(code: str, what: str, where: str, why: str, label: str) -> Diagnostic:
    return Diagnostic(code=code, severity="note", what=what, where=where, why=why, engine=label)


def _notes(ledger: Ledger, where: str, label: str) -> list[Diagnostic]:
    if not ledger.starts:
        return []
    notes = []
    if ledger.overwritten:
        why = "by design; a draft that trained its own embedding loses it (`eyas check --deep` compares the two)"
        notes.append(
            _note("overwritten", f"{', '.join(ledger.overwritten)} give way to the target's", where, why, label)
        )
    if own := [t.name for t in ledger.tensors if t.parameter == "model.embed_tokens.weight" and t.fate == "used"]:
        why = "if it is not the target's, it is used as the draft's own (`eyas check --deep` compares the two)"
        notes.append(_note("embedding-kept", f"{own[0]} is kept", where, why, label))
    casts = [t.name for t in ledger.tensors if "cast F32" in t.remark or "cast F64" in t.remark]
    if casts:
        why = "vLLM computes a draft in the target's dtype, SGLang in that of its config (float32 there means float16)"
        notes.append(
            _note("dtype-cast", f"{counted(len(casts), 'tensor is', 'tensors are')} cast down", where, why, label)
        )
    if ledger.aux == ():
        why = "eagle_config.use_aux_hidden_state is false and the draft has no fc: it was trained on that state alone"
        notes.append(_note("aux-none", "no layers are tapped: the draft sees the last hidden state", where, why, label))
    if ledger.aux is None:
        why = "the target's depth is not known: give --target"
        notes.append(_note("aux-unknown", "eyas cannot tell which layers the engine taps", where, why, label))
    return notes


def _runner(ledger: Ledger, other: Ledger, where: str, label: str) -> list[Diagnostic]:
    if (ledger.verdict, ledger.aux) == (other.verdict, other.aux):
        return []
    default = "the default" if ledger.engine.runner_is_default else "not the default"
    new: Sequence[Reason] = [r for r in other.reasons if r.code not in {x.code for x in ledger.reasons}]
    because = (
        "; ".join(f"{r.diagnostic.what} ({r.diagnostic.why})" for r in new)
        or f"boundaries {other.aux} instead of {ledger.aux}"
    )
    return [
        Diagnostic(
            code="runner-differs",
            severity="warning",
            what=f"{other.verdict} on the {other.runner} runner, {ledger.verdict} on {ledger.runner} ({default})",
            where=where,
            why=because,
            do="see which runner your launch takes (a log line says so); VLLM_USE_V2_MODEL_RUNNER=1 or 0 forces one",
            engine=label,
        )
    ]


def _approximated(engine: EngineVersion, where: str, label: str) -> Diagnostic:
    return Diagnostic(
        code="engine-approximated",
        severity="warning",
        what=f"{label} is not known: judged by the rules of {engine.rules}",
        where=where,
        why="its loader may behave otherwise; no line above is certain",
        do="measure after the start: accept length above 1.05 over 200 verify passes",
        engine=label,
    )
