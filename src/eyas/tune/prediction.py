"""From acceptance and costs to a speed for every K: arithmetic only.

A verify pass with K drafts gains `accept_length(K)` tokens a sequence and takes `seconds(K)`; a plain step gains one in
`seconds(0)`. So speedup(K) = accept_length(K) * seconds(0) / seconds(K). Acceptance comes from replay and does not
depend on the machine; costs are measured and do not depend on the draft's quality.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eyas.decode.accept_length import Acceptance

# A measured speedup this close to its prediction confirms it.
CLOSE = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds per pass with a number of sequences at a time.

    Attributes:
        concurrency: sequences.
        seconds: K -> seconds of a verify pass with its drafting; 0 -> a plain step. Depths between two measured ones
            lie on the line between them, deeper ones on the line through the last two.
        source: how they were measured, in words.
    """

    concurrency: int
    seconds: Mapping[int, float]
    source: str

    def __post_init__(self) -> None:
        assert 0 in self.seconds, "a plain step"
        assert len(self.seconds) >= 2, "one drafted pass at least"

    def at(self, num_draft_tokens: int) -> float:
        """Seconds of a pass with K drafts."""
        known = sorted(k for k in self.seconds if k)
        if num_draft_tokens in self.seconds or len(known) == 1:
            return self.seconds.get(num_draft_tokens, self.seconds[known[0]])
        above = next((k for k in known if k > num_draft_tokens), known[-1])
        high = max(known.index(above), 1)
        a, b = known[high - 1], known[high]
        slope = (self.seconds[b] - self.seconds[a]) / (b - a)
        return self.seconds[a] + slope * (num_draft_tokens - a)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One K at one concurrency.

    Attributes:
        concurrency: sequences at a time.
        num_draft_tokens: K.
        accept_length: by replay.
        pass_ms: of a verify pass with its drafting.
        speedup: predicted, over plain decoding at the same concurrency.
        tokens_per_s: predicted, all sequences together, prompts not counted.
        measured, measured_low, measured_high: speedup with its interval, where it was confirmed.
    """

    concurrency: int
    num_draft_tokens: int
    accept_length: float
    pass_ms: float
    speedup: float
    tokens_per_s: float
    measured: float | None = None
    measured_low: float | None = None
    measured_high: float | None = None

    @property
    def is_close(self) -> bool | None:
        """Whether the measurement confirms the prediction; None where nothing was measured."""
        return None if self.measured is None else abs(self.measured / self.speedup - 1) <= CLOSE

    def as_document(self) -> dict[str, Any]:
        """The setting for JSON."""
        return {**asdict(self), "is_close": self.is_close}


def predict(acceptances: Mapping[int, Acceptance], costs: Costs) -> list[Setting]:
    """A setting for each K of `acceptances`, ascending."""
    plain = costs.at(0)
    return [
        Setting(
            concurrency=costs.concurrency,
            num_draft_tokens=k,
            accept_length=found.accept_length,
            pass_ms=1e3 * costs.at(k),
            speedup=found.accept_length * plain / costs.at(k),
            tokens_per_s=costs.concurrency * found.accept_length / costs.at(k),
        )
        for k, found in sorted(acceptances.items())
    ]


def best(settings: Sequence[Setting], most: int) -> list[Setting]:
    """The `most` settings with the highest predicted speedup, best first; among equals the shallower one."""
    return sorted(settings, key=lambda s: (-s.speedup, s.num_draft_tokens))[:most]


def break_even(settings: Sequence[Setting]) -> str:
    """From which concurrency on speculation loses at every K, in words; a measured speedup goes before a predicted."""
    levels = sorted({s.concurrency for s in settings})
    gains = {level: max(s.measured or s.speedup for s in settings if s.concurrency == level) for level in levels}
    losing = [level for level in levels if gains[level] < 1]
    if not losing:
        return f"speculation pays at every concurrency asked for (up to {levels[-1]})"
    first = losing[0]
    before = [level for level in levels if level < first]
    if not before:
        return f"speculation loses at concurrency {first} already, at every K: serve without a draft there"
    return f"speculation pays up to concurrency {before[-1]} and loses from {first} on, at every K"
