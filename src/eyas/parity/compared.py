"""A server's counts beside the replay of the ids that it emitted: equal, explained by near-ties, or different.

Two things may differ without a fault. The last round of a text: an engine may have accepted drafts beyond the end of
the text, which it counts and no reader of its ids can see. And near-ties: where the draft's two best tokens are closer
than the arithmetic of the server resolves, either of them may be drafted; each such decision can move one count.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eyas.decode.accept_length import Acceptance

ParityVerdict = Literal["equal", "within-near-ties", "different", "too-few-rounds"]
_FEWEST_ROUNDS = 20
# A near-tie that falls the other way moves the starts of the rounds behind it until both meet again: measured on
# SmolLM2 in bfloat16, fewer than two counts a position for each.
_COUNTS_PER_TIE = 2
_SHARE = 0.01  # of the rounds, for what is within near-ties: beyond it a difference has another cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Counts of a server and of the replay of its ids.

    Attributes:
        served: the server's own counts.
        replayed: of the same ids.
        open_ends: texts whose last round may have accepted drafts beyond the text.
        near_ties: decisions on the replayed path that the server's arithmetic may have taken the other way.
        excess: K + 1 counts: rounds, then drafts 1 … K; how far the server's count lies outside what the open ends
            allow.
    """

    served: Acceptance
    replayed: Acceptance
    open_ends: int
    near_ties: int
    excess: tuple[int, ...]

    @property
    def verdict(self) -> ParityVerdict:
        """Equal, within near-ties, or different; too few rounds decide nothing unless they are equal."""
        if not any(self.excess):
            return "equal" if self.replayed.rounds else "too-few-rounds"
        if max(self.excess) <= self.allowed:
            return "within-near-ties"
        return "different" if self.replayed.rounds >= _FEWEST_ROUNDS else "too-few-rounds"

    @property
    def allowed(self) -> int:
        """Largest difference of one count that near-ties explain."""
        return min(_COUNTS_PER_TIE * self.near_ties, max(2, int(_SHARE * self.replayed.rounds)))

    @property
    def first_different_position(self) -> int | None:
        """Draft position, from 1, whose count differs by more than near-ties explain; None if none does."""
        over = [k for k, excess in enumerate(self.excess[1:], 1) if excess > self.allowed]
        return over[0] if over else None

    @property
    def largest_share(self) -> float:
        """The largest excess as a share of the replayed rounds; nan without rounds."""
        return max(self.excess) / self.replayed.rounds if self.replayed.rounds else float("nan")


def compare(
    served: Acceptance, replayed: Sequence[Sequence[int]], reaches_end: Sequence[bool], near_ties: int
) -> Compared:
    """The server's counts beside the replayed rounds.

    Args:
        served: pooled over the texts.
        replayed: for each text, accepted drafts of each round.
        reaches_end: for each text, whether its last round accepted every token that the text still had.
        near_ties: see `Compared`.
    """
    depth = len(served.accepted_at)
    expected = Acceptance.of_rounds([n for rounds in replayed for n in rounds], depth)
    open_ends = sum(reaches_end)
    pairs = zip(served.accepted_at, expected.accepted_at, strict=True)
    # Fewer rounds than replayed have no such excuse: each text has the rounds that it has.
    excess = [abs(served.rounds - expected.rounds)]
    excess += [max(theirs - ours - open_ends, ours - theirs, 0) for theirs, ours in pairs]
    return Compared(served=served, replayed=expected, open_ends=open_ends, near_ties=near_ties, excess=tuple(excess))
