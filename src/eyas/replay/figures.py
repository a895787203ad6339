"""From rounds to figures, by the one definition of accept length."""

from collections.abc import Sequence

from eyas.decode.accept_length import Acceptance, pooled, request_mean
from eyas.records.eval_record import Figures, RowResult


def figures_of(rows: Sequence[RowResult], num_draft_tokens: int) -> Figures:
    """The figures of all `rows` together."""
    requests = [Acceptance.of_rounds(row.accepted, num_draft_tokens) for row in rows]
    total = pooled(requests, num_draft_tokens)
    return Figures(
        accept_length=total.accept_length,
        accept_length_request_mean=request_mean(requests),
        per_position=total.per_position,
        per_position_conditional=total.conditional,
        accepted_at=total.accepted_at,
        rounds=total.rounds,
        num_tokens=total.num_tokens,
        num_requests=len(rows),
        num_draft_tokens=num_draft_tokens,
    )


def figures_by_set(rows: Sequence[RowResult], num_draft_tokens: int) -> dict[str, Figures]:
    """Set name -> its figures, in order of first appearance."""
    names = dict.fromkeys(row.set for row in rows)
    return {name: figures_of([row for row in rows if row.set == name], num_draft_tokens) for name in names}
