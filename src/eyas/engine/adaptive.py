"""How deep to draft, decided round by round: nothing here changes a text, only its speed.

Knows costs (`CostTable`), what was accepted so far, and how far the draft's own confidence can be trusted. It answers
two questions. *Is speculation worth it now?* While speculation is on, the speed of its last rounds is compared with a
plain step. If it loses, it is turned off and tried again after some plain steps: soon if it has gained more than it
lost so far, otherwise so late that trying costs at most a small share of the time. *How deep?* A further draft must be
expected to raise the tokens per second of the round.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from eyas.engine.cost_table import CostTable

_NUM_BINS = 10  # of the draft's confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveSettings:
    """How carefully speculation is turned off and tried again.

    Attributes:
        window: drafted rounds whose speed is held against plain, at least `trial`.
        trial: rounds before their speed is taken for that of the next ones, 1 or more.
        most_lost: plain steps; a loss of this many ends speculation before the window is full.
        budget: share of the time that failed trials may cost, above 0, where speculation has not gained it before.
        most_gained: plain steps of gain that count against later losses.
        first_wait, longest_wait: plain steps before a trial; the wait doubles with each one that fails.
    """

    window: int = 48
    trial: int = 6
    most_lost: float = 4.0
    budget: float = 0.01
    most_gained: float = 200.0
    first_wait: int = 16
    longest_wait: int = 1024

    def __post_init__(self) -> None:
        assert 1 <= self.trial <= self.window, "a trial is judged by its window"
        assert self.budget > 0, "without a budget nothing is tried again"
        assert 1 <= self.first_wait <= self.longest_wait, "waits grow"


class AdaptiveDepth:
    """The choice of depth for one engine; it keeps learning from text to text.

    Args:
        costs: measured on that engine.
        settings: caution.
    """

    def __init__(self, costs: CostTable, settings: AdaptiveSettings | None = None) -> None:
        self.costs = costs
        self._switch = Switch(costs.plain_s, settings or AdaptiveSettings())
        self._calibration, self._counts = Calibration(), DepthCounts(costs.most)

    @property
    def most(self) -> int:
        """The deepest draft it may ask for."""
        return self.costs.most

    @property
    def is_on(self) -> bool:
        """Whether speculation is on, because it pays or is being tried."""
        return self._switch.is_on

    def most_now(self) -> int:
        """The most drafts of a round that `wants_another` can end; 0 = a plain step without the draft."""
        return self.most if self._switch.is_on else 0

    def best_now(self) -> int:
        """Before a round whose depth must be known in advance: the depth of most expected tokens a second."""
        if not self._switch.is_on:
            return 0
        expected, reached, best = 1.0, 1.0, (0.0, 1)
        for depth, share in enumerate(self._counts.shares(), 1):
            reached *= share
            expected += reached
            best = max(best, (expected / self.costs.round_s[depth], depth))
        return best[1]

    def wants_another(self, confidences: Sequence[float], num_drafted: int) -> bool:
        """Whether one draft more is expected to gain more than it costs; see `round.WantsAnother`."""
        reached = 1.0
        for confidence in confidences:
            reached *= self._calibration.share(confidence)
        if len(confidences) == num_drafted:  # the next draft's own offer is not there yet
            reached *= self._counts.shares()[num_drafted]
        return reached >= self._switch.speed * self.costs.of_another(num_drafted)

    def saw(self, asked: int, num_drafted: int, num_accepted: int, confidences: Sequence[float] = ()) -> None:
        """Learn from a round.

        Args:
            asked: what `most_now` or `best_now` said before it.
            num_drafted: drafts verified, at most `asked`.
            num_accepted: of them.
            confidences: per draft, if the draft was asked.
        """
        if asked == 0:
            self._switch.waited()
            return
        self._counts.saw(num_drafted, num_accepted)
        for depth, confidence in enumerate(confidences[: num_accepted + 1]):
            self._calibration.saw(confidence, was_accepted=depth < num_accepted)
        self._switch.gained(1 + num_accepted, self.costs.of_round(num_drafted, has_read=True))


class Switch:
    """Turns speculation on and off by what its rounds gained.

    Args:
        plain_s: seconds of a plain step.
        settings: caution.
    """

    def __init__(self, plain_s: float, settings: AdaptiveSettings) -> None:
        self._plain_s, self._settings = plain_s, settings
        self.is_on = True
        self._recent: deque[tuple[int, float]] = deque(maxlen=settings.window)
        self._num_failed = self._num_waited = self._wait = 0
        self._balance = 0.0  # plain steps that speculation has gained, as far back as it counts

    @property
    def speed(self) -> float:
        """Tokens per second to beat: of the last drafted rounds, at least that of plain decoding."""
        plain = 1 / self._plain_s
        return plain if len(self._recent) < self._settings.trial else max(plain, self._speed())

    def gained(self, num_tokens: int, seconds: float) -> None:
        """A drafted round is over."""
        if not self.is_on:  # launched before it was turned off
            return
        self._recent.append((num_tokens, seconds))
        most = self._settings.most_gained
        self._balance = min(most, max(-most, self._balance + num_tokens - seconds / self._plain_s))
        lost, is_full = self._lost_steps(), len(self._recent) == self._settings.window
        if lost > (0 if is_full else self._settings.most_lost):
            self._turn_off(lost)
        elif is_full:
            self._num_failed = 0

    def waited(self) -> None:
        """A plain step is over."""
        self._num_waited += 1
        if not self.is_on and self._num_waited >= self._wait:
            self.is_on = True

    def _lost_steps(self) -> float:
        """How many more tokens plain steps would have made in the time of the last drafted rounds."""
        return sum(s for _, s in self._recent) / self._plain_s - sum(n for n, _ in self._recent)

    def _turn_off(self, lost: float) -> None:
        settings = self._settings
        self._wait = min(settings.longest_wait, settings.first_wait << min(self._num_failed, 30))
        if self._balance <= 0:  # one more for what the draft must read before it can be tried again
            self._wait = max(self._wait, ceil((lost + 1) / settings.budget))
        self._num_failed += 1
        self._num_waited, self.is_on = 0, False
        self._recent.clear()

    def _speed(self) -> float:
        return sum(n for n, _ in self._recent) / sum(s for _, s in self._recent)


class DepthCounts:
    """Share of drafts accepted at each depth, given that all before were: for depths that are chosen in advance.

    Args:
        most: the deepest draft.
        memory: rounds after which a count weighs 1/e.
    """

    def __init__(self, most: int, memory: float = 60.0) -> None:
        self._tried, self._accepted = [0.0] * most, [0.0] * most
        self._kept = 1 - 1 / memory

    def saw(self, num_drafted: int, num_accepted: int) -> None:
        """Count a round: depths after the first rejected draft are unknown."""
        for depth in range(len(self._tried)):
            self._tried[depth] *= self._kept
            self._accepted[depth] *= self._kept
            if depth < min(num_drafted, num_accepted + 1):
                self._tried[depth] += 1
                self._accepted[depth] += depth < num_accepted

    def shares(self) -> list[float]:
        """Acceptance per depth; a depth with little data takes that of the depth before (0.6 before the first)."""
        weight, before, found = 3.0, 0.6, []
        for tried, accepted in zip(self._tried, self._accepted, strict=True):
            before = (accepted + weight * before) / (tried + weight)
            found.append(before)
        return found


class Calibration:
    """How often drafts of a given confidence are accepted; at first the confidence itself is the estimate.

    Args:
        memory: drafts of one bin after which a count weighs 1/e.
    """

    def __init__(self, memory: float = 200.0) -> None:
        self._tried, self._accepted = [0.0] * _NUM_BINS, [0.0] * _NUM_BINS
        self._kept = 1 - 1 / memory

    def saw(self, confidence: float, *, was_accepted: bool) -> None:
        """Count a draft that was judged."""
        i = _bin(confidence)
        self._tried[i] = self._tried[i] * self._kept + 1
        self._accepted[i] = self._accepted[i] * self._kept + was_accepted

    def share(self, confidence: float) -> float:
        """Expected share of drafts of this confidence that are accepted."""
        weight, i = 4.0, _bin(confidence)
        return (self._accepted[i] + weight * confidence) / (self._tried[i] + weight)


def _bin(confidence: float) -> int:
    return min(_NUM_BINS - 1, int(confidence * _NUM_BINS))
