"""What rounds of each depth cost, measured when an engine warms up; depth is chosen by it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

from eyas.decode.chain import GreedyRule
from eyas.engine.round import begin, play
from eyas.engine.sequence_protocols import DraftSequence, TargetSequence

_NUM_REPEATS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTable:
    """Seconds that a round costs at each depth.

    Attributes:
        round_s: entry k = a whole round with k drafts, the draft's read before it included; entry 0 = a plain step,
            without any pass of the draft.
        read_s: the draft's pass over one round's states; part of every entry but the first.
    """

    round_s: tuple[float, ...]
    read_s: float = 0.0

    def __post_init__(self) -> None:
        assert len(self.round_s) >= 2, "a table knows the plain step and one drafted round at least"
        assert list(self.round_s) == sorted(self.round_s), "a deeper round does more: see `of_samples`"

    @classmethod
    def of_samples(cls, round_s: Sequence[Sequence[float]]) -> "CostTable":
        """Medians per depth; an entry that noise put below a shallower one is raised to it."""
        return cls(round_s=tuple(accumulate(map(median, round_s), max)))

    @classmethod
    def of_noisy_samples(cls, round_s: Sequence[Sequence[float]], read_s: Sequence[float]) -> "CostTable":
        """Least times, which other work on the machine disturbs least; drafted rounds on a straight line.

        A choice between neighbouring depths weighs differences of a few percent, which is less than the noise of one
        entry; a line through all drafted depths is surer.
        """
        plain, *drafted = map(min, round_s)
        slope, start = _line(drafted)
        straight = (plain, *(start + slope * k for k in range(1, len(drafted) + 1)))
        return cls(round_s=tuple(accumulate(straight, max)), read_s=min(read_s))

    @property
    def most(self) -> int:
        """The deepest draft that was measured."""
        return len(self.round_s) - 1

    @property
    def plain_s(self) -> float:
        """A plain step."""
        return self.round_s[0]

    def of_round(self, num_drafted: int, *, has_read: bool) -> float:
        """A round's seconds; if the draft read but drafted nothing, its reading is added."""
        return self.round_s[num_drafted] + self.read_s * (has_read and num_drafted == 0)

    def of_another(self, num_drafted: int) -> float:
        """What one draft more costs once the draft has read: its step and its row of the verify pass."""
        step = self.round_s[num_drafted + 1] - self.round_s[num_drafted]
        return step if num_drafted else max(0.0, step - self.read_s)


def measure_costs(
    target: TargetSequence, draft: DraftSequence, ids: Sequence[int], most: int, clock: Callable[[], float]
) -> CostTable:
    """Play rounds of every depth in turns and time them.

    Args:
        target, draft: used as they will be; their sequences are overwritten.
        ids: a text of typical length, at least one token.
        most: the deepest draft.
        clock: seconds.
    """
    num_rounds = _NUM_REPEATS * (most + 1)
    capacity = len(ids) + (num_rounds + 2) * (most + 1) + 1
    target.start(capacity, draft.aux_boundaries)
    draft.start(capacity)
    rule = GreedyRule()
    position = begin(target, draft, rule, list(ids), is_lazy=True)
    play(target, draft, rule, position, most, is_lazy=True)  # buffers are made, the prompt is read
    samples: list[list[float]] = [[] for _ in range(most + 1)]
    reads = []
    for _ in range(_NUM_REPEATS):
        for depth, times in enumerate(samples):
            started = clock()
            play(target, draft, rule, position, depth, is_lazy=True)
            times.append(clock() - started)
        started = clock()
        position.catch_up(draft)
        reads.append(clock() - started)
    return CostTable.of_noisy_samples(samples, reads)


def _line(values: Sequence[float]) -> tuple[float, float]:
    """Slope (not below 0) and start of the least-squares line through values at 1, 2, …"""
    num = len(values)
    middle, mean = (num + 1) / 2, sum(values) / num
    spread = sum((k - middle) ** 2 for k in range(1, num + 1))
    slope = sum((k - middle) * v for k, v in enumerate(values, 1)) / spread if spread else 0.0
    slope = max(0.0, slope)
    return slope, mean - slope * middle
