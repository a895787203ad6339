"""The report of `eyas check` for a person: verdict per engine, findings worst first, launch, ledger, short or whole."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from eyas.contract.check.check import CheckReport
from eyas.contract.engines.launching.recipe import Launch
from eyas.contract.engines.loading.ledger import Ledger
from eyas.diagnostic import Diagnostic
from eyas.errors import EyasError
from eyas.report.side_by_side import columns_of, table_lines
from eyas.talk import counted

if TYPE_CHECKING:
    from eyas.parity.predictions import Predictions
    from eyas.replay.predict import Prediction

_WORDS = {
    "ok": "ok: loads and computes what was trained, as far as headers show",
    "silent-damage": "SILENT DAMAGE: starts, answers correctly, accepts less",
    "crash": "CRASH: fails while loading or at the first forward pass",
    "refuses": "REFUSED: the engine does not take this draft",
}
_SHORT = {"silent-damage": "SILENT DAMAGE", "crash": "CRASH", "refuses": "REFUSED"}
_ALONE = "ok by itself: loads; the target is unknown, so whether they fit is not judged (give --target)"
_PLURAL_OF = {"fatal": "fatal", "error": "errors", "warning": "warnings", "note": "notes"}
_SHOWN = 12  # names of one block; --json has all


def check_text(report: CheckReport, draft: Path, *, ledger: bool) -> str:
    """All of it, without a trailing newline."""
    known = f"{report.dialect} ({'; '.join(report.evidence)})" if report.dialect else "in no format that eyas reads"
    lines = [f"{draft}: {known}", ""]
    for label, found in report.ledgers.items():
        lines += _verdict(label, found, report.other_runners.get(label), alone=not report.is_target_known)
    if report.ledgers:
        lines.append("")
    lines += _findings(report.findings)
    for label, launch in report.launch.items():
        why = report.withheld(label)
        lines += ["", f"launch on {label}: no flags to copy, {why}"] if why else ["", *_launch(label, launch)]
    if report.ledgers and not ledger:
        lines += ["", *(_counts(label, found) for label, found in report.ledgers.items())]
    for label, found in report.ledgers.items():
        lines += ["", *_ledger(label, found)] if ledger else []
    return "\n".join(lines)


def _verdict(label: str, ledger: Ledger, other: Ledger | None, *, alone: bool) -> list[str]:
    severity = f" ({ledger.severity})" if ledger.severity else ""
    runner = f", {ledger.runner} runner" if ledger.runner else ""
    aux = f"; taps boundaries {list(ledger.aux)}" if ledger.aux else ""
    words = _ALONE if alone and ledger.is_healthy else _WORDS[ledger.verdict]
    lines = [f"{label:<22} {words}{severity}{aux}"]
    lines.append(f"{'':<22} rules of {ledger.engine.rules}{runner}, {ledger.grade}: {ledger.source}")
    faulty = [f"{stage} {_SHORT[v]}{f' ({s})' if s else ''}" for stage, (v, s) in ledger.stages.items() if v != "ok"]
    if len(faulty) > 1:
        lines.append(f"{'':<22} each by itself: {'; '.join(faulty)}")
    if not ledger.starts and ledger.dropped:
        lost = counted(len(ledger.dropped), "tensor is", "tensors are")
        shown = [*ledger.dropped[:_SHOWN], *(["..."] if len(ledger.dropped) > _SHOWN else [])]
        lines.append(f"{'':<22} once it starts, {lost} dropped: {', '.join(shown)}")
    if other is not None and (other.verdict, other.aux) != (ledger.verdict, ledger.aux):
        taps = f", boundaries {list(other.aux)}" if other.aux else ""
        lines.append(f"{'':<22} on the {other.runner} runner: {other.verdict}{taps}")
    return lines


def _findings(findings: Sequence[Diagnostic]) -> list[str]:
    groups: dict[tuple[str, ...], list[Diagnostic]] = {}
    for finding in findings:
        alike = (finding.code, finding.severity, finding.engine or "", finding.why, finding.advice)
        groups.setdefault(alike, []).append(finding)
    lines = [_block(group) for group in groups.values()]
    counts = {s: sum(f.severity == s for f in findings) for s in ("fatal", "error", "warning", "note")}
    summary = ", ".join(counted(n, s, _PLURAL_OF[s]) for s, n in counts.items() if n) or "nothing to report"
    return [*lines, "", summary] if lines else [summary]


def _block(group: Sequence[Diagnostic]) -> str:
    """Findings of one code, one cause and one remedy, as one."""
    first = group[0]
    if len(group) > 1:
        names = [f.what for f in group[:_SHOWN]] + ([f"and {len(group) - _SHOWN} more"] if len(group) > _SHOWN else [])
        what = "\n    - ".join([f"{len(group)} of one kind", *names])
        first = replace(first, what=what, where=", ".join(dict.fromkeys(f.where for f in group)))
    text = str(first)
    return text.replace("]: ", f"] {first.engine}: ", 1) if first.engine else text


def _launch(label: str, launch: Launch) -> list[str]:
    environment = " ".join(f"{k}={v}" for k, v in launch.environment.items())
    flags = shlex.join(launch.flags)
    files = [f"  {line}" for name, text in launch.files.items() for line in (f"{name}:", *text.splitlines())]
    shown = f"  {environment} {flags}".replace("   ", "  ")
    return [f"launch on {label}:", shown, *files, *(f"  - {n}" for n in launch.notes)]


def _counts(label: str, ledger: Ledger) -> str:
    """The ledger in a line: how many of each fate."""
    parts = [
        ("tensors", Counter(str(t.fate) for t in ledger.tensors)),
        ("parameters", Counter(str(p.state) for p in ledger.parameters)),
        ("config keys", Counter(str(k.fate) for k in ledger.keys)),
    ]
    shown = [
        f"{counts.total()} {name}: {', '.join(f'{n} {word}' for word, n in counts.most_common())}"
        for name, counts in parts
        if counts
    ]
    return f"ledger of {label} (--ledger lists it): {'; '.join(shown) or 'empty'}"


def _ledger(label: str, ledger: Ledger) -> list[str]:
    width = max((len(t.name) for t in ledger.tensors), default=0)
    lines = [f"ledger of {label}: {ledger.draft_class or 'no draft class'}", "  checkpoint tensors"]
    for t in ledger.tensors:
        to = f"-> {t.parameter}" if t.parameter else ""
        lines.append(f"    {t.fate:<12} {t.name:<{width}} {to} {f'({t.remark})' if t.remark else ''}".rstrip())
    lines.append("  runtime parameters")
    width = max((len(p.name) for p in ledger.parameters), default=0)
    for p in ledger.parameters:
        source = f"<- {', '.join(p.sources)}" if p.sources else ""
        remark = f"({p.remark})" if p.remark else ""
        lines.append(f"    {p.state:<13} {p.name:<{width}} {list(p.shape)} {source} {remark}".rstrip())
    lines.append("  config keys")
    lines += [f"    {k.fate:<13} {k.key} {f'({k.remark})' if k.remark else ''}".rstrip() for k in ledger.keys]
    return lines


def predictions_text(predictions: "Predictions", probe: str) -> str:
    """The accept length as trained and on each engine, as a table."""
    k = predictions.num_draft_tokens
    document = {"schema": "eyas.check/1", "probe": predictions.as_document()}
    lines = [
        f"accept length by replay of {probe} ({predictions.num_rows} texts, K = {k}; 1.00 = nothing accepted)",
        *table_lines(columns_of([("", document)])),
    ]
    return "\n".join([*lines, *prediction_notes(predictions.engines)])


def prediction_notes(engines: "Mapping[str, Prediction | EyasError]") -> list[str]:
    """What to know of the predictions: none and why, what is lost, what is not in the figures."""
    notes = []
    for label, found in engines.items():
        if isinstance(found, EyasError):
            notes.append(f"{label}: no prediction: {found.what}; {found.why}")
            continue
        if found.lost:
            notes.append(
                f"{label} loses {counted(len(found.lost), 'tensor', 'tensors')}: the range covers what memory may hold"
            )
        if found.blocked:
            notes.append(
                f"{label} does not serve it as it is ({', '.join(found.blocked)}): the figure holds after that"
            )
        if found.limit:
            limit = found.limit
            notes.append(f"{label}: the first {limit.tokens} tokens of each text are counted; beyond, {limit.beyond}")
        if found.not_emulated:
            notes.append(f"{label} ignores {', '.join(found.not_emulated)}: their effect is not in the figure")
    return [f"  - {note}" for note in notes]
