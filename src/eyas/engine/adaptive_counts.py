"""What was accepted, by depth and by the draft's confidence: counts that forget, with a prior where they are few."""

_NUM_BINS = 10


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
        """Count a round: depths behind the first rejected draft say nothing."""
        for depth in range(len(self._tried)):
            self._tried[depth] *= self._kept
            self._accepted[depth] *= self._kept
            if depth < min(num_drafted, num_accepted + 1):
                self._tried[depth] += 1
                self._accepted[depth] += depth < num_accepted

    def shares(self) -> list[float]:
        """Per depth; where little was seen, as at the depth before (0.6 before the first)."""
        weight, before, found = 3.0, 0.6, []
        for tried, accepted in zip(self._tried, self._accepted, strict=True):
            before = (accepted + weight * before) / (tried + weight)
            found.append(before)
        return found


class Calibration:
    """How often drafts of a given confidence are accepted; at first a confidence is taken at its word.

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
