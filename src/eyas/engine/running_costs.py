"""What rounds cost, corrected by what they take while texts are made.

A table is measured once, and other work on the machine may have disturbed it just then. Two things keep the correction
from being disturbed by other work in its turn. A round's time is first divided by how slow the machine is *now*, the
median of the last rounds' times over what the table says: what slows all rounds alike changes nothing, since a choice
of depth weighs the entries against each other only. And an entry is a median of several rounds.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median, median_low

from eyas.engine.cost_table import CostTable

_NUM_KEPT = 9  # rounds per depth
_NUM_NOW = 8  # rounds that say how slow the machine is
_FEWEST_PLAIN, _FEWEST = 5, 3  # plain steps, and rounds of a depth, before they count
# Drafted rounds, after which a plain step is worth its time: they have to be held against something.
_LONGEST_WITHOUT_PLAIN, _LONGEST_AT_FIRST = 48, 8
_LONGEST_WITHOUT_DRAFT = 8  # rounds in which the draft was asked; then one token is drafted, whatever the table says


class RunningCosts:
    """A cost table that follows what rounds take.

    Args:
        measured: at warm-up.

    Attributes:
        table: what rounds cost; as measured until there is something to correct it by.
    """

    def __init__(self, measured: CostTable) -> None:
        self.table, self._read_share = measured, measured.read_s / measured.plain_s
        self._taken: list[deque[float]] = [deque(maxlen=_NUM_KEPT) for _ in measured.round_s]
        self._slowness: deque[float] = deque(maxlen=_NUM_NOW)
        self._num_since_plain = self._num_since_draft = 0

    @property
    def is_timed(self) -> bool:
        """Rounds have been timed."""
        return bool(self._slowness)

    @property
    def wants_draft(self) -> bool:
        """The next round should draft one token: what the table says against it has not been seen to be so for long."""
        return self._num_since_draft >= _LONGEST_WITHOUT_DRAFT

    @property
    def wants_plain(self) -> bool:
        """The next round should be a plain step: drafted ones have not been held against one for long."""
        is_first = len(self._taken[0]) < _FEWEST_PLAIN
        return self._num_since_plain >= (_LONGEST_AT_FIRST if is_first else _LONGEST_WITHOUT_PLAIN)

    def saw(self, num_drafted: int, seconds: float, *, has_read: bool) -> None:
        """A round took so long.

        Args:
            has_read: the draft has read the states of one round; a plain step leaves it alone.
        """
        self._slowness.append(seconds / self.table.of_round(num_drafted, has_read=has_read))
        taken = seconds / median(self._slowness)
        if has_read and num_drafted == 0:
            taken = max(taken - self.table.read_s, taken / 2)
        self._taken[num_drafted].append(taken)
        self._num_since_plain = self._num_since_plain + 1 if num_drafted else 0
        self._num_since_draft = 0 if num_drafted else self._num_since_draft + has_read
        depths = [k for k, seen in enumerate(self._taken) if k and len(seen) >= _FEWEST]
        if depths and len(self._taken[0]) >= _FEWEST_PLAIN:
            self.table = self._corrected(depths)

    def _corrected(self, depths: Sequence[int]) -> CostTable:
        """Drafted rounds on a line through these depths, each as heavy as it was seen often; a plain step, with what
        the draft reads, stands at depth 0 of it."""
        plain = median_low(self._taken[0])
        read_s = self._read_share * plain
        drafted = [(k, median_low(self._taken[k]), len(self._taken[k])) for k in depths]
        return CostTable.on_a_line(plain, [(0, plain + read_s, 1), *drafted], self.table.most, read_s)
