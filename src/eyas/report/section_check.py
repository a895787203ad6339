"""The ledger card: per engine, the verdict and the fate of every tensor and parameter."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from eyas.report.documents import RunDocuments
from eyas.report.page import Block, Section, Table, Text

CHECK = "eyas.check"


def check_sections(runs: RunDocuments) -> list[Section]:
    """Nothing, or one card per check found."""
    return [_section(n, d.path, d.content) for n, d in enumerate(runs.of(CHECK))]


def _section(number: int, path: str, content: Mapping[str, Any]) -> Section:
    blocks: list[Block] = []
    entries = list(content["engines"].values())
    if entries:
        head = ["engine", "verdict", "tensors", "parameters", "dropped", "unfilled", "aux boundaries", "rules from"]
        blocks.append(Table(head=head, rows=[_summary(ledger) for ledger in entries]))
    findings = content["findings"]
    if findings:
        rows = [[f["severity"], f["engine"] or "any", f"{f['what']} ({f['why']})", f["do"] or "–"] for f in findings]
        blocks.append(Table(head=["severity", "engine", "finding", "what to do"], rows=rows, caption="Findings"))
    blocks += [
        Text(summary=f"Ledger of {ledger['engine']}: every tensor and parameter", text=_ledger_text(ledger))
        for ledger in entries
        if ledger.get("tensors")
    ]
    lead = "What each engine's loader does with the draft, before anything is started."
    return Section(id=f"check{number}", title="Ledger", source=path, lead=lead, blocks=blocks)


def _summary(ledger: Mapping[str, Any]) -> list[str]:
    verdict = ledger["verdict"] + (f" ({ledger['severity']})" if ledger.get("severity") else "")
    aux = ledger.get("aux")
    return [
        ledger["engine"] + (f" {ledger['runner']}" if ledger.get("runner") else ""),
        verdict,
        _counts(t["fate"] for t in ledger.get("tensors", [])),
        _counts(p["state"] for p in ledger.get("parameters", [])),
        ", ".join(ledger["dropped"]) or "none",
        ", ".join(ledger["unfilled"]) or "none",
        "–" if aux is None else ", ".join(map(str, aux)),
        f"{ledger['source']} ({ledger['grade']})",
    ]


def _counts(words: Any) -> str:
    return ", ".join(f"{count} {word}" for word, count in Counter(words).items()) or "–"


def _ledger_text(ledger: Mapping[str, Any]) -> str:
    tensors = [
        f"{t['name']:<48} {t['fate']:<12} {t['parameter'] or '–'}  {t['remark']}".rstrip() for t in ledger["tensors"]
    ]
    parameters = [
        f"{p['name']:<48} {p['state']:<13} {' + '.join(p['sources']) or '–'}  {p['remark']}".rstrip()
        for p in ledger["parameters"]
    ]
    return "\n".join(
        ["checkpoint tensor -> runtime parameter", *tensors, "", "runtime parameter <- source", *parameters]
    )
