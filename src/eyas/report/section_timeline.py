"""The start-up card: how long each phase of a server's start took, and how it ended."""

from collections.abc import Mapping
from typing import Any

from eyas.report import svg
from eyas.report.documents import RunDocuments
from eyas.report.page import Block, Chart, Section, Table

TIMELINE = "eyas.timeline"


def timeline_sections(runs: RunDocuments) -> list[Section]:
    """Nothing, or one card per launch found."""
    return [_section(n, d.path, d.content) for n, d in enumerate(runs.of(TIMELINE))]


def _section(number: int, path: str, content: Mapping[str, Any]) -> Section:
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
