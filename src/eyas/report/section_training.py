"""The training card: the data's manifest, the loss curve, accuracy per unrolled step."""

from collections.abc import Mapping, Sequence
from typing import Any

from eyas.report import svg
from eyas.report.documents import RunDocuments
from eyas.report.page import Block, Chart, Section, Table, Text

ROWS, METRICS, HELD_OUT = "eyas.rows", "eyas.metrics", "eyas.held-out"
_NUM_STEPS_DRAWN = 4


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
            points=[(float(r["tokens"]), _value(r["accuracy"], step)) for r in records],
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


def _value(values: Sequence[float | None], index: int) -> float:
    value = values[index] if index < len(values) else None
    return float("nan") if value is None else float(value)
