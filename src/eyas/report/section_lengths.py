"""The card that shows trained, predicted and served acceptance side by side."""

from eyas.report import svg
from eyas.report.documents import RunDocuments
from eyas.report.page import Chart, Section, Table, Text
from eyas.report.side_by_side import Column, columns_of, range_text, share_text

ACCEPT, PARITY, VERDICT = "eyas.accept", "eyas.parity", "eyas.verdict"
_MOST_DRAWN = 6
_LEAD = (
    "What the draft accepts as it was trained, what each engine was predicted to accept with it, and what servers did"
    " accept. Equal figures mean that nothing was lost on the way. Only figures over the same texts can be equal to the"
    " last digit: those of one document."
)
_VERDICTS = {
    "equal": "equal",
    "within-near-ties": "equal within near-ties",
    "within-noise": "equal within noise",
    "different": "DIFFERENT: the server does not run the draft as it was trained",
    "too-few-rounds": "too few rounds to decide",
}


def lengths_sections(runs: RunDocuments) -> list[Section]:
    """One card where there is more than one kind of figure."""
    columns = columns_of([(runs.name_of(document), document.content) for document in runs.documents])
    if len({column.kind for column in columns}) < 2:
        return []
    depth = max(len(column.per_position) for column in columns)
    table = Table(
        head=["", "accept length", "rounds", "K", *(f"up to draft {k}" for k in range(1, depth + 1))],
        rows=[_row(column) for column in columns],
        caption="Accept length, and the share of rounds that accept this draft and all before it; ranges cover what"
        " memory may hold where an engine leaves it uninitialised",
    )
    replays = [
        Text(text=f"{runs.name_of(document)}: {_VERDICTS.get(document.content['verdict'], '')}")
        for document in runs.of(PARITY)
    ]
    chart = Chart(svg=_chart(columns, depth), caption="Share of rounds; of a range its lower end")
    return [Section(id="lengths", title="Trained, predicted, served", lead=_LEAD, blocks=[chart, table, *replays])]


def _row(column: Column) -> list[str | int | float]:
    rounds: str | int = "–" if column.rounds is None else column.rounds
    shares = map(share_text, column.per_position)
    name, length = f"{column.kind}: {column.source}", range_text(column.accept_length, 3)
    return [name, length, rounds, len(column.per_position), *shares]


def _chart(columns: list[Column], depth: int) -> str:
    return svg.bar_chart(
        [f"draft {k + 1}" for k in range(depth)],
        [(f"{c.kind}: {c.source}", [low for low, _ in c.per_position]) for c in columns[:_MOST_DRAWN]],
        title="Acceptance per position: trained, predicted, served",
        y_label="share of rounds",
        y_max=1.0,
    )
