"""The cards of a run beside its speed: acceptance, training, the ledger, the start of a server."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from eyas.report import svg
from eyas.report.documents import CHECK, RunDocuments, draft_words
from eyas.report.page import Block, Chart, Headline, Section, Table, Text

EVAL, TIMELINE = "eyas.eval", "eyas.timeline"
ROWS, METRICS, HELD_OUT = "eyas.rows", "eyas.metrics", "eyas.held-out"
_NUM_STEPS_DRAWN = 4


def eval_headlines(runs: RunDocuments) -> list[Headline]:
    """One figure and one sentence per evaluation."""
    return [
        Headline(
            figure=_fixed(d.content["accept_length"], 2),
            sentence=f"tokens per verify pass by replay (accept length), {d.content['num_draft_tokens']} drafts a pass",
            draft=draft_words(d.content),
        )
        for d in runs.of(EVAL)
    ]


def eval_sections(runs: RunDocuments) -> list[Section]:
    """Nothing, or one card with all evaluations found."""
    documents = runs.of(EVAL)
    if not documents:
        return []
    rows: list[list[str | int | float]] = []
    for document in documents:
        content = document.content
        tree = content.get("tree")
        draft = f"tree {tree['width']}x{tree['depth']}x{tree['num_nodes']}" if tree else content["num_draft_tokens"]
        rows.append(_eval_row(runs.name_of(document), "all", content, draft))
        rows += [_eval_row("", name, figures, draft) for name, figures in content["sets"].items()]
    depth = max(len(d.content["per_position"]) for d in documents)
    chart = svg.bar_chart(
        [f"draft {k + 1}" for k in range(depth)],
        [(runs.name_of(d), [_number(v) for v in d.content["per_position"]]) for d in documents],
        title="Acceptance per position",
        y_label="share of rounds",
        y_max=1.0,
    )
    lead = (
        "By replay: the target read each recorded text once, and the draft guessed from every position. Accept length "
        "counts tokens per verify pass, bonus token included; 1.00 means that nothing was accepted."
    )
    table = Table(
        head=["evaluation", "set", "accept length", "per-request mean", "rounds", "texts", "K"],
        rows=rows,
        caption="Accept length pooled over rounds, and its unweighted mean over requests",
    )
    caption = "Joint acceptance: share of rounds in which this draft and all before it were accepted"
    return [Section(id="eval", title="Accept length", lead=lead, blocks=[Chart(svg=chart, caption=caption), table])]


def _eval_row(name: str, set_name: str, figures: Any, draft: str | int) -> list[str | int | float]:
    return [
        name,
        set_name,
        _fixed(figures["accept_length"]),
        _fixed(figures["accept_length_request_mean"]),
        figures["rounds"],
        figures["num_requests"],
        draft,
    ]


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _fixed(value: float | None, digits: int = 3) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def training_sections(runs: RunDocuments) -> list[Section]:
    """Nothing, or one card each for the rows and for every training run found."""
    sections = []
    for number, document in enumerate(runs.of(ROWS)):
        rows = document.content
        share = rows["num_supervised"] / max(rows["num_tokens"], 1)
        dropped = ", ".join(f"{count} {why}" for why, count in rows["dropped"].items()) or "none"
        table = Table(
            head=["training data", ""],
            rows=[
                ["rows", rows["num_rows"]],
                ["tokens", rows["num_tokens"]],
                ["supervised tokens", f"{rows['num_supervised']} ({share:.0%})"],
                ["records left out", dropped],
                ["fingerprint of the rows", rows["fingerprint"]],
                ["tokenizer / template", f"{rows['tokenizer']} / {rows['template']}"],
            ],
        )
        lead = "Only the answers are supervised, each with the token that closes its turn."
        sections.append(
            Section(id=f"rows{number}", title="Training rows", source=document.path, lead=lead, blocks=[table])
        )
    for number, document in enumerate([*runs.of(METRICS), *runs.of(HELD_OUT)]):
        sections.append(_training(number, document.path, document.content["records"]))
    return sections


def _training(number: int, path: str, lines: Sequence[Mapping[str, Any]]) -> Section:
    replays = [line for line in lines if str(line.get("schema")).startswith(HELD_OUT)]
    records = [line for line in lines if str(line.get("schema")).startswith(METRICS)]
    last = records[-1]
    loss = svg.Line(label="loss", points=[(float(r["tokens"]), float(r["loss"])) for r in records])
    accuracies = [
        svg.Line(
            label=f"step {step}",
            points=[
                (float(r["tokens"]), _number(r["accuracy"][step] if step < len(r["accuracy"]) else None))
                for r in records
            ],
            series=step + 1,
        )
        for step in range(min(_NUM_STEPS_DRAWN, len(last["accuracy"])))
    ]
    num_steps, num_drawn = len(last["accuracy"]), len(accuracies)
    drawn = f" (steps 0 to {num_drawn - 1} of {num_steps} are drawn)" if num_drawn < num_steps else ""
    blocks: list[Block] = [
        Chart(svg=svg.line_chart([loss], title="Training loss", x_label="tokens", y_label="loss"), caption="Loss"),
        Chart(
            svg=svg.line_chart(accuracies, title="Accuracy per unrolled step", x_label="tokens", y_label="accuracy"),
            caption=f"Accuracy per unrolled step{drawn}, in the target's ids:"
            " a token outside the draft's vocabulary counts as wrong",
        ),
    ]
    if replays:
        blocks.append(_replays(replays))
    if last["seconds"]:
        words = f"{last['tokens']} tokens in {last['seconds']:.0f} s, {last['tokens'] / last['seconds']:.0f} tokens/s."
        blocks.append(Text(text=words))
    lead = f"{len(records)} steps; the loss went from {records[0]['loss']:.3f} to {last['loss']:.3f}."
    return Section(id=f"training{number}", title="Training", source=path, lead=lead, blocks=blocks)


def _replays(replays: Sequence[Mapping[str, Any]]) -> Chart:
    best = max(replays, key=lambda replay: replay["accept_length"])
    line = svg.Line(label="accept length", points=[(float(r["tokens"]), float(r["accept_length"])) for r in replays])
    drafts = best["num_draft_tokens"]
    return Chart(
        svg=svg.line_chart([line], title="Accept length on held-out rows", x_label="tokens", y_label="tokens a pass"),
        caption=f"Replay with {drafts} drafts a pass; highest: {best['accept_length']:.3f} after step {best['step']}",
    )


def check_sections(runs: RunDocuments) -> list[Section]:
    """Nothing, or one card per check found."""
    return [_check_section(n, d.path, d.content) for n, d in enumerate(runs.of(CHECK))]


def _check_section(number: int, path: str, content: Mapping[str, Any]) -> Section:
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


def timeline_sections(runs: RunDocuments) -> list[Section]:
    """Nothing, or one card per launch found."""
    return [_timeline_section(n, d.path, d.content) for n, d in enumerate(runs.of(TIMELINE))]


def _timeline_section(number: int, path: str, content: Mapping[str, Any]) -> Section:
    origin = content["began_at"]
    spans = [
        svg.Span(
            label=_phase_name(phase),
            start=phase["began_at"] - origin,
            end=phase["began_at"] - origin + phase["duration_s"],
            series=2 if phase.get("role") == "draft" else 1,
        )
        for phase in content["phases"]
        if phase["duration_s"] is not None and phase["duration_s"] >= 0
    ]
    chart = svg.span_chart(spans, title="Start-up phases", x_label="seconds since the start")
    states = [[f"{s['elapsed_s']:.1f}", s["state"], s["reason"]] for s in content["states"]]
    blocks: list[Block] = [
        Chart(svg=chart, caption="Start-up phases; the second colour is the draft's"),
        Table(head=["after s", "state", "why"], rows=states, caption="States"),
    ]
    ready = content["ready_after_s"]
    ended = f"ready after {ready:.1f} s" if ready is not None else f"never ready; last state: {content['outcome']}"
    return Section(
        id=f"timeline{number}",
        title="Start-up",
        source=path,
        lead=f"{content['engine']} {content['version'] or ''}: {ended}. {content['reason']}".strip(),
        blocks=blocks,
    )


def _phase_name(phase: Mapping[str, Any]) -> str:
    return " ".join(str(phase[key]) for key in ("key", "detail") if phase.get(key))[:34]
