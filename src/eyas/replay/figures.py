"""From rounds to figures, by the one definition of accept length, and what a figure says: nothing, or clearly more."""

from collections import Counter
from collections.abc import Sequence
from math import sqrt

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


_LENGTHS = ((256, "under 256"), (1024, "256 … 1023"))  # tokens of a prompt, below which it is called so
_LONGEST = "1024 or more"


def figures_by_prompt_length(
    rows: Sequence[RowResult], prompt_tokens: Sequence[int], num_draft_tokens: int
) -> dict[str, Figures]:
    """Range of prompt lengths -> figures of its rows, the short ones first; ranges without rows are left out.

    Args:
        prompt_tokens: of each row.
    """
    found: dict[str, list[RowResult]] = {name: [] for name in (*(name for _, name in _LENGTHS), _LONGEST)}
    for row, length in zip(rows, prompt_tokens, strict=True):
        found[next((name for below, name in _LENGTHS if length < below), _LONGEST)].append(row)
    return {name: figures_of(some, num_draft_tokens) for name, some in found.items() if some}


_NOTHING = 1.005  # shown as 1.00
_NEARLY_NOTHING = 1.3


def is_nothing_accepted(figures: Figures) -> bool:
    """Whether the accept length is 1.00, as it is shown. Without a round nothing is known: False."""
    return figures.rounds > 0 and figures.accept_length < _NOTHING


def nothing_accepted(figures: Figures, causes: str) -> str:
    """The note, with the likely `causes` in the order in which to look."""
    return (
        f"nothing is accepted: accept length {figures.accept_length:.2f} over {figures.rounds} rounds, so this draft"
        f" speeds nothing up. Likely: {causes}; docs/training.md, 'When nothing is accepted'"
    )


def meaning(accept_length: float | None, num_draft_tokens: int) -> str:
    """What an accept length says of a draft, for a reader who has seen few of them; empty without a round."""
    if accept_length is None:
        return ""
    said = f"accept length {accept_length:.2f} of at most {num_draft_tokens + 1}"
    grades = ((_NEARLY_NOTHING, "nearly nothing is accepted"), (1.6, "few drafts are accepted"), (2.0, "a weak draft"))
    grade = next((words for limit, words in grades if accept_length < limit), "as healthy drafts have it")
    if num_draft_tokens < 3:  # too few to compare with published figures
        return f"{said}: {grade}" if accept_length < _NEARLY_NOTHING else said
    return f"{said}: {grade}; healthy drafts reach 2 - 3.5 at K = 3 - 5"


_PIECE = 16  # tokens
# Standard errors that the mean difference must stand above 0: the best of a dozen equals reaches two now and then.
_SURE = 3.0


def is_clearly_better(one: Sequence[RowResult], other: Sequence[RowResult]) -> bool:
    """`one` needs fewer rounds than `other` for the same texts, and not by chance. Too little text proves nothing.

    Args:
        one, other: the same rows in the same order.
    """
    ours, theirs = _rounds_by_piece(one), _rounds_by_piece(other)
    saved = [theirs[piece] - ours[piece] for piece in ours.keys() | theirs.keys()]
    if len(saved) < 2:
        return False
    mean = sum(saved) / len(saved)
    variance = sum((s - mean) ** 2 for s in saved) / (len(saved) - 1)
    return mean > 0 and mean >= _SURE * sqrt(variance / len(saved))


def _rounds_by_piece(rows: Sequence[RowResult]) -> Counter[tuple[int, int]]:
    """(row, piece) -> rounds that begin in it."""
    found: Counter[tuple[int, int]] = Counter()
    for number, row in enumerate(rows):
        at = 0
        for accepted in row.accepted:
            found[number, at // _PIECE] += 1
            at += accepted + 1
    return found
