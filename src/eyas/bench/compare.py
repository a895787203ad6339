"""Speculative compared with plain decoding, set by set: speedup with its interval, accept length, ceiling, verdict."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Protocol

from eyas.bench.measure import ALL, Answer, Measurements
from eyas.decode.accept_length import Acceptance, pooled, request_mean
from eyas.errors import ExitCode, EyasError
from eyas.records.bench_record import MAX_SPEEDUP_PER_ACCEPT_LENGTH, Ceiling, Comparison

_MOST_OF_CEILING = 1.02  # a speedup above this share of its ceiling means that the ceiling was measured badly
_AT_CEILING = 0.995  # from here on a share would print as 100 % or more, which is noise in the parts' times
NUM_RESAMPLES = 2000
_TAIL = 0.025  # each side of a 95 % interval


class BaselineHandicapped(EyasError):
    """The speedup is higher than speculation can give, so the plain arm was slowed down."""

    code = "bench-baseline-handicapped"
    exit_code = ExitCode.FINDINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTimes:
    """Medians in this run, seconds.

    Attributes:
        one_row: one pass of the target over one row.
        verify: K -> one pass over K + 1 rows.
        draft_step: one step of the draft.
    """

    one_row: float
    verify: Mapping[int, float]
    draft_step: float

    def ceiling(self, accept_length: float, histogram: Sequence[int]) -> Ceiling:
        """The speedup that these times allow at an accept length.

        Args:
            accept_length: tokens per round.
            histogram: entry k = rounds with k drafts.
        """
        rounds = sum(histogram)
        verify = sum(n * (self.verify[k] if k else self.one_row) for k, n in enumerate(histogram) if n) / rounds
        round_s = verify + sum(n * k for k, n in enumerate(histogram)) / rounds * self.draft_step
        return Ceiling(
            speedup=accept_length * self.one_row / round_s,
            one_row_ms=1e3 * self.one_row,
            verify_ms=1e3 * verify,
            draft_step_ms=1e3 * self.draft_step,
        )


class Parts(Protocol):
    """Times of the parts of a round, for a chain or a tree."""

    def ceiling(self, accept_length: float, histogram: Sequence[int]) -> Ceiling:
        """The speedup that they allow; entry k of `histogram` = rounds with k drafts."""


def compare(
    measured: Measurements, arm: str, num_draft_tokens: int, parts: Parts | None, *, seed: int
) -> list[Comparison]:
    """One comparison per set."""
    return [_compare(measured, arm, name, num_draft_tokens, parts, seed) for name in measured.sets]


def _compare(
    measured: Measurements, arm: str, set_name: str, num_draft_tokens: int, parts: Parts | None, seed: int
) -> Comparison:
    # A fixed depth accepts the same in every repeat; an adaptive one keeps learning.
    counted = [a for answers in measured.of(arm, set_name) for a in (answers if answers[0].drafted else answers[:1])]
    requests = [_acceptance(answer, num_draft_tokens) for answer in counted]
    total = pooled(requests, num_draft_tokens)
    histogram = depth_histogram(total)
    decode = [measured.seconds(name, set_name) for name in ("plain", arm)]
    whole = [measured.seconds(name, set_name, with_prefill=True) for name in ("plain", arm)]
    speedup, low, high = ratio_interval(*decode, seed=seed)
    ceiling = parts.ceiling(total.accept_length, histogram) if parts else None
    return Comparison(
        set=set_name,
        arm=arm,
        num_draft_tokens=num_draft_tokens,
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        speedup_with_prefill=ratio_interval(*whole, seed=seed)[0],
        accept_length=total.accept_length,
        accept_length_request_mean=request_mean(requests),
        per_position=total.per_position,
        rounds=total.rounds,
        depth_histogram=histogram,
        undrafted_rounds=histogram[0],
        ceiling=ceiling,
        verdict=verdict(speedup, low, high, ceiling),
    )


def verdict(speedup: float, low: float, high: float, ceiling: Ceiling | None) -> str:
    """A speedup and its interval in words."""
    interval = f"{speedup:.2f} times plain (95 % interval {low:.2f} to {high:.2f})"
    text = f"{outcome(low, high)}: {interval}" + ("; leave it off here" if high < 1 else "")
    if ceiling is None:
        return text
    share = share_of_ceiling(speedup, ceiling.speedup)
    if share == "above":
        return (
            f"{text}; above its ceiling {ceiling.speedup:.2f}: the parts were timed at a slower moment, so run it again"
        )
    place = "at" if share == "at it" else f"{share} of"
    return f"{text}; {place} the ceiling {ceiling.speedup:.2f} that the times of its parts allow"


def outcome(low: float, high: float) -> str:
    """What a speedup's interval shows, in words."""
    if low > 1:
        return "speculation is faster"
    return "speculation is slower" if high < 1 else "no difference can be shown"


def share_of_ceiling(speedup: float, ceiling: float) -> str:
    """`93%`; `at it` up to 2 % beyond, which is noise; `above` if the ceiling cannot be right."""
    share = speedup / ceiling
    if share > _MOST_OF_CEILING:
        return "above"
    return "at it" if share >= _AT_CEILING else f"{share:.0%}"


def is_told(set_name: str, sets: Sequence[str]) -> bool:
    """Whether to show a set: `all` repeats the other one if there is one kind of text."""
    return set_name != ALL or len({*sets} - {ALL}) != 1


def best_of(comparisons: Sequence[Comparison]) -> Comparison:
    """The comparison of the highest speedup over all prompts."""
    overall = [c for c in comparisons if c.set == ALL]
    return max(overall, key=lambda c: c.speedup)


def impossible(comparisons: Sequence[Comparison]) -> BaselineHandicapped | None:
    """An error for the first speedup whose lower bound exceeds 1.02 times its accept length; None without one."""
    bad = [c for c in comparisons if c.speedup_low > MAX_SPEEDUP_PER_ACCEPT_LENGTH * c.accept_length]
    if not bad:
        return None
    low, accept_length = bad[0].speedup_low, bad[0].accept_length
    return BaselineHandicapped(
        f"a speedup of at least {low:.2f} at an accept length of {accept_length:.2f} is impossible",
        f"set {bad[0].set}, {bad[0].arm}",
        "a verify pass costs at least as much as a plain step, so a speedup cannot exceed the accept length:"
        " the plain arm was slowed down",
        "run it again on an idle machine or with `--threads 1`; if it stays, report it with what `--json` prints",
    )


def depth_histogram(total: Acceptance) -> tuple[int, ...]:
    """Entry k = rounds in which exactly k drafts were verified."""
    at_least = (total.rounds, *total.proposed_at, 0)
    return tuple(a - b for a, b in pairwise(at_least))


def _acceptance(answer: Answer, num_draft_tokens: int) -> Acceptance:
    assert answer.accepted is not None, "a speculating arm counts its rounds"
    return Acceptance.of_rounds(answer.accepted, num_draft_tokens, answer.drafted)


def ratio_interval(
    numerators: Sequence[Sequence[float]], denominators: Sequence[Sequence[float]], *, seed: int
) -> tuple[float, float, float]:
    """Ratio of summed times, and its 95 % bootstrap interval.

    Prompts are resampled, and for each drawn prompt a repeat (the same one for both times: arms are interleaved, so
    that a slow moment of the machine hits both). The point estimate uses each prompt's median over repeats.

    Args:
        numerators, denominators: [prompt][repeat] seconds, same shape.
        seed: of the resampling.

    Returns:
        (ratio, low, high).
    """
    num_prompts, num_repeats = len(numerators), len(numerators[0])
    point = sum(map(median, numerators)) / sum(map(median, denominators))
    chance = random.Random(seed)
    ratios = []
    for _ in range(NUM_RESAMPLES):
        drawn = [(chance.randrange(num_prompts), chance.randrange(num_repeats)) for _ in range(num_prompts)]
        ratios.append(sum(numerators[p][r] for p, r in drawn) / sum(denominators[p][r] for p, r in drawn))
    ratios.sort()
    return point, ratios[int(_TAIL * NUM_RESAMPLES)], ratios[int((1 - _TAIL) * NUM_RESAMPLES) - 1]
