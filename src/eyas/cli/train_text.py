"""The summary of `eyas train`, as text and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any


def summary_of(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the first and the last tenth of the steps."""
    if not metrics:
        return {"metrics": None}
    tenth = max(1, len(metrics) // 10)
    parts = {"first": metrics[:tenth], "last": metrics[-tenth:]}
    return {
        "metrics": {
            name: {
                "loss": sum(r["loss"] for r in part) / len(part),
                **{key: _mean_per_step(part, key) for key in ("accuracy", "joint", "conditional")},
            }
            for name, part in parts.items()
        },
        "tokens_per_s": metrics[-1]["tokens"] / metrics[-1]["seconds"],
    }


def _mean_per_step(records: Sequence[Mapping[str, Any]], key: str) -> list[float | None]:
    columns = zip(*(record[key] for record in records), strict=True)
    means = []
    for column in columns:
        known = [value for value in column if value is not None]
        means.append(sum(known) / len(known) if known else None)
    return means


def plan_text(document: Mapping[str, Any]) -> str:
    rows = document["rows"]
    return (
        f"{rows['num_rows']} rows, {rows['num_tokens']} tokens, {rows['num_supervised']} supervised\n"
        f"{document['steps']} steps of {document['tokens'] // max(1, document['steps'])} tokens on average (at most"
        f" {document['batch_tokens']}), {document['tokens']} in all\n"
        "nothing written (--dry-run)"
    )


def outcome_text(document: Mapping[str, Any], *, init_only: bool) -> str:
    if init_only or document["metrics"] is None:
        return f"{document['out']}: an initialised, untrained draft"
    first, last = document["metrics"]["first"], document["metrics"]["last"]
    lines = [
        f"{document['steps']} steps, {document['tokens']} tokens, {document['tokens_per_s']:.0f} tokens/s",
        f"loss {first['loss']:.3f} → {last['loss']:.3f} (means over the first and last tenth of the steps)",
        "in the last tenth, by unrolled step; a token outside the draft vocabulary counts as wrong:",
        f"  accuracy     {_percents(last['accuracy'])}  (teacher-forced)",
        f"  joint        {_percents(last['joint'])}  (right at all steps so far)",
        f"  conditional  {_percents(last['conditional'])}  (right, given right at all steps before)",
        *_held_out_lines(document),
        f"{document['out']}: written, with metrics.jsonl",
    ]
    return "\n".join(lines)


def _held_out_lines(document: Mapping[str, Any]) -> list[str]:
    measured = document["accept_lengths"]
    if not measured:
        return []
    curve = "  ".join(f"{length:.2f}" for _, length in measured)
    kept = document["kept"]
    chosen = f"step {kept['step']} is written" if kept else f"step {document['steps']}, the last, is written"
    lines = [f"accept length on the held-out rows: {curve}  (steps {measured[0][0]} … {measured[-1][0]}); {chosen}"]
    written = document["written"]
    if written is not None:
        lines.append(_written_line(written, dict(measured).get(written["step"])))
    return lines


def _written_line(written: Mapping[str, Any], expected: float | None) -> str:
    """The accept length of the written file, and the one it was chosen by, if they differ."""
    length = f"{written['accept_length']:.3f}"
    differs = expected is not None and f"{expected:.3f}" != length
    trained = f"; {expected:.3f} while training" if differs else ""
    sets: Mapping[str, float] = written.get("sets") or {}
    weakest = min(sets, key=lambda name: sets[name], default=None)
    beside = "" if weakest is None else f"; weakest set: {weakest}, {sets[weakest]:.2f}"
    return (
        f"accept length of the draft as written: {length}{trained}{beside}"
        f" ({written['num_requests']} rows, {written['rounds']} rounds, {written['num_draft_tokens']} drafts a pass)"
    )


def _percents(values: Sequence[float | None]) -> str:
    return " ".join("   –" if value is None else f"{value:4.0%}" for value in values)
