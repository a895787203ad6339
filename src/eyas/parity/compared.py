"""A server's counts beside the replay of the ids that it emitted: equal, explained by near-ties, or different.

Two things may differ without a fault. The last round of a text: an engine may have accepted drafts beyond the end of
the text, which it counts and no reader of its ids can see. And near-ties: where the draft's two best tokens are closer
than the arithmetic of the server resolves, either of them may be drafted; each such decision can move one count.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

from eyas.decode.accept_length import Acceptance
from eyas.parity.sampled_drafts import ExpectedCounts

ParityVerdict = Literal["equal", "within-near-ties", "within-noise", "different", "too-few-rounds"]
_FEWEST_ROUNDS = 20
# A near-tie that falls the other way moves the starts of the rounds after it until both meet again: measured on
# SmolLM2 in bfloat16, fewer than two counts a position for each.
_COUNTS_PER_TIE = 2
_SHARE = 0.01  # of the rounds, for what is within near-ties: beyond it a difference has another cause
_SIGMAS = 3.5  # of a count that is random: with 4 counts, one false alarm in 500 comparisons


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Counts of a server and of the replay of its ids.

    Attributes:
        served: the server's own counts.
        replayed: of the same ids; where drafts are sampled, the expected counts, rounded.
        open_ends: texts whose last round may have accepted drafts beyond the text.
        near_ties: decisions on the replayed path that the server's arithmetic may have taken the other way.
        excess: K + 1 counts: rounds, then drafts 1 … K; how far the server's count lies outside what the open ends
            allow.
        allowed: K + 1: how far it may, by near-ties or, where drafts are sampled, by chance.
        is_random: drafts are sampled.
    """

    served: Acceptance
    replayed: Acceptance
    open_ends: int
    near_ties: int
    excess: tuple[int, ...]
    allowed: tuple[int, ...]
    is_random: bool = False

    @property
    def verdict(self) -> ParityVerdict:
        """Equal, within near-ties or noise, or different; too few rounds decide nothing unless they are equal."""
        if not any(self.excess):
            return "equal" if self.replayed.rounds else "too-few-rounds"
        if all(excess <= allowed for excess, allowed in zip(self.excess, self.allowed, strict=True)):
            return "within-noise" if self.is_random else "within-near-ties"
        return "different" if self.replayed.rounds >= _FEWEST_ROUNDS else "too-few-rounds"

    @property
    def first_different_position(self) -> int | None:
        """Draft position, from 1, whose count differs by more than is allowed; None if none does."""
        pairs = zip(self.excess[1:], self.allowed[1:], strict=True)
        return next((k for k, (excess, allowed) in enumerate(pairs, 1) if excess > allowed), None)

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
    allowed = min(_COUNTS_PER_TIE * near_ties, max(2, int(_SHARE * expected.rounds)))
    return Compared(
        served=served,
        replayed=expected,
        open_ends=sum(reaches_end),
        near_ties=near_ties,
        excess=_excess(served, expected, sum(reaches_end)),
        allowed=(allowed,) * (depth + 1),
    )


def compare_sampled(served: Acceptance, expected: ExpectedCounts, num_texts: int) -> Compared:
    """The server's counts beside those to expect when drafts are sampled.

    Args:
        num_texts: each may have ended inside a round.
    """
    rounds, *accepted = (round(value) for value in expected.mean)
    replayed = Acceptance(rounds, tuple(accepted), (rounds,) * len(accepted))
    return Compared(
        served=served,
        replayed=replayed,
        open_ends=num_texts,
        near_ties=0,
        excess=_excess(served, replayed, num_texts),
        allowed=tuple(ceil(_SIGMAS * variance**0.5) for variance in expected.variance),
        is_random=True,
    )


def _excess(served: Acceptance, expected: Acceptance, open_ends: int) -> tuple[int, ...]:
    pairs = zip(served.accepted_at, expected.accepted_at, strict=True)
    # The number of rounds has no such excuse: each text has the rounds that it has.
    return (
        abs(served.rounds - expected.rounds),
        *(max(theirs - ours - open_ends, ours - theirs, 0) for theirs, ours in pairs),
    )
