"""The acceptance card: accept length and per-position acceptance of every evaluation, side by side."""

import math
from typing import Any

from eyas.report import svg
from eyas.report.documents import RunDocuments
from eyas.report.drafts import draft_words
from eyas.report.page import Chart, Headline, Section, Table

EVAL = "eyas.eval"


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
        rows.append(_row(runs.name_of(document), "all", content, draft))
        rows += [_row("", name, figures, draft) for name, figures in content["sets"].items()]
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


def _row(name: str, set_name: str, figures: Any, draft: str | int) -> list[str | int | float]:
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
