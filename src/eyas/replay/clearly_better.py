"""Whether one replay of some texts accepts more than another of the same texts, beyond the noise of few texts.

Rounds of two replays begin at different tokens, so that they cannot be compared one by one. Pieces of the texts can:
the better reading needs fewer rounds for a piece.
"""

from collections import Counter
from collections.abc import Sequence
from math import sqrt

from eyas.records.eval_record import RowResult

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
