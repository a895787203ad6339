"""Trained, predicted, served: the acceptance that the documents of a run hold, as columns of one table.

Trained: `eyas eval`, the replay of `eyas parity`. Predicted: `eyas check --probe`, `eyas eval --for`. Served: the
verdict of `eyas serve`, the counts of `eyas accept` and `eyas parity`, our engine's in `eyas bench`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Literal

Kind = Literal["trained", "predicted", "served"]
KINDS: tuple[Kind, ...] = ("trained", "predicted", "served")
Range = tuple[float, float]  # lowest and highest; equal where there is one figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One measurement or prediction.

    Attributes:
        source: document, and the engine or arm in it.
        accept_length: bonus included.
        per_position: entry k = share of rounds that accept drafts 1 … k + 1.
        rounds: None where the document does not say.
    """

    kind: Kind
    source: str
    accept_length: Range
    per_position: tuple[Range, ...]
    rounds: int | None = None

    def as_document(self) -> dict[str, Any]:
        """The column as a JSON object."""
        low, high = self.accept_length
        return {**asdict(self), "accept_length": {"low": low, "high": high}}


def columns_of(documents: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Column]:
    """What the documents hold, trained first; of other schemas, trees and empty measurements nothing.

    Args:
        documents: name and content.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: a document does not follow its schema.
    """
    found = [column for name, content in documents for column in _of(name, content)]
    return sorted(found, key=lambda column: KINDS.index(column.kind))


def _of(name: str, content: Mapping[str, Any]) -> Iterator[Column]:
    schema = str(content.get("schema")).split("/")[0]
    if schema == "eyas.eval" and not content.get("tree"):
        yield from _one("trained", name, content)
        yield from _predicted(name, content.get("predicted") or {})
    elif schema == "eyas.check" and content.get("probe"):
        yield from _one("trained", name and f"{name}, pack", content["probe"]["trained"])
        yield from _predicted(name, content["probe"]["engines"])
    elif schema == "eyas.parity":
        yield from _one("trained", f"{name}, replay of the served text", content["replayed"])
        yield from _one("served", name, content["served"])
    elif schema in ("eyas.verdict", "eyas.accept"):
        yield from _one("served", name, content)
    elif schema == "eyas.bench":
        for row in content["comparisons"]:
            if row["set"] == "all" and str(row.get("arm", "")).startswith("k=") and "auto" not in row["arm"]:
                yield from _one("served", f"{name}, {row['arm']}", row)


def _predicted(name: str, engines: Mapping[str, Mapping[str, Any]]) -> Iterator[Column]:
    for label, found in engines.items():
        if "served" in found:
            yield from _ranged("predicted", f"{name}, {label}" if name else label, list(found["served"].values()))


def _one(kind: Kind, source: str, figures: Mapping[str, Any]) -> Iterator[Column]:
    yield from _ranged(kind, source, [figures])


def _ranged(kind: Kind, source: str, figures: Sequence[Mapping[str, Any]]) -> Iterator[Column]:
    lengths = [float(one["accept_length"] or "nan") for one in figures]
    if not lengths or not all(map(isfinite, lengths)):
        return
    positions = zip(*(one["per_position"] for one in figures), strict=True)
    yield Column(
        kind=kind,
        source=source,
        accept_length=(min(lengths), max(lengths)),
        per_position=tuple((min(map(float, shares)), max(map(float, shares))) for shares in positions),
        rounds=figures[0].get("rounds"),
    )


def range_text(value: Range, digits: int) -> str:
    """ "2.31", or "1.00 – 1.42" where the two ends differ as shown."""
    low, high = (f"{end:.{digits}f}" for end in value)
    return low if low == high else f"{low} – {high}"


def share_text(value: Range) -> str:
    """ ".56", or ".00–.21"."""
    low, high = (f"{end:.2f}".removeprefix("0") for end in value)
    return low if low == high else f"{low}–{high}"


def table_lines(columns: Sequence[Column]) -> list[str]:
    """The columns as lines of a table for a terminal, one line each."""
    depth = max(len(column.per_position) for column in columns)
    names = [f"{column.kind}: {column.source}" if column.source else column.kind for column in columns]
    width = max(map(len, names))
    lines = [
        f"{'':<{width}}  accept length  rounds  accepted up to position",
        f"{'':<{width}}{'':25}" + "  ".join(f"{n:>7}" for n in range(1, depth + 1)),
    ]
    for name, column in zip(names, columns, strict=True):
        shares = "  ".join(f"{share_text(share):>7}" for share in column.per_position)
        rounds = "–" if column.rounds is None else column.rounds
        lines.append(f"{name:<{width}}  {range_text(column.accept_length, 3):<13}  {rounds:>6}  {shares}")
    return lines
