"""Answers to figures: speeds, latencies with percentiles, acceptance; whole, by kind of text and by context length.

- tok/s in total: new tokens of all answers over the time from the first request to the end of the last answer.
- tok/s per user: an answer's tokens over its whole time; the mean over answers.
- TTFT: until the first token arrives. TPOT: from there to the last token, over the tokens that came later. ITL: between
  arrivals; tokens that arrive together have one gap, as a reader sees them.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from eyas.bench.served.load import Asked, ServedTurn
from eyas.decode.accept_length import Acceptance, pooled, request_mean
from eyas.decode.repetition import REPETITIVE, repetition_share

_T = TypeVar("_T")
NUM_RESAMPLES = 1000
_TAIL = 0.025
SHARES = (50, 90, 95, 99)
_CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds.

    Attributes:
        mean: over all. low, high: 95 % bootstrap interval of the mean. percentiles: share in percent -> value.
        number: of values.
    """

    mean: float
    low: float
    high: float
    percentiles: Mapping[int, float]
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Acceptance of some answers.

    Attributes:
        accept_length: tokens per verify pass, bonus included, pooled. low, high: 95 % bootstrap interval over answers;
            the value itself where the server counts all answers together.
        request_mean: unweighted mean over answers; None where the server counts all together.
        per_position: entry k = share of rounds in which drafts 1 … k + 1 were all accepted.
        rounds: verify passes. num_answers: that were counted.
        source: "answers" or "counters".
    """

    accept_length: float
    low: float
    high: float
    request_mean: float | None
    per_position: tuple[float, ...]
    rounds: int
    num_answers: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFigures:
    """One server at one point of a sweep, all repeats together.

    Attributes:
        tokens_per_s, tokens_per_s_low, tokens_per_s_high: in total; median and extremes over repeats.
        tokens_per_s_per_user: mean over answers.
        num_answers, num_tokens, num_repetitive: answers of all repeats, their new tokens, and how many of them repeat
            themselves (a quarter of the text was there before).
        ttft, tpot, itl: latencies in seconds; None where no answer has two arrivals.
        accepted: None for a server that does not speculate, or does not say.
        accepted_straight: without the answers that repeat themselves; None where that is the same.
        by_set, by_context: the same figures for parts of the answers (prompt tokens from … below …).
    """

    tokens_per_s: float
    tokens_per_s_low: float
    tokens_per_s_high: float
    tokens_per_s_per_user: float
    num_answers: int
    num_tokens: int
    num_repetitive: int
    ttft: Latency | None
    tpot: Latency | None
    itl: Latency | None
    accepted: Accepted | None
    accepted_straight: Accepted | None
    by_set: Mapping[str, Accepted]
    by_context: Mapping[str, Accepted]


def figures_of(turns: Sequence[ServedTurn], counted: Acceptance | None, depth: int, *, seed: int) -> ServedFigures:
    """All figures of one server at one point.

    Args:
        turns: one per repeat, at least one.
        counted: by the server's counters over all turns, where its answers carry no counts.
        depth: K, for the width of per-position figures.
        seed: of the bootstrap.
    """
    asked = [one for turn in turns for one in turn.asked]
    speeds = sorted(sum(one.num_tokens for one in turn.asked) / turn.seconds for turn in turns)
    repetitive = [_repeats(one) for one in asked]
    straight = [one for one, bad in zip(asked, repetitive, strict=True) if not bad]
    accepted = acceptance_of(asked, depth, seed=seed) or _of_counters(counted, len(asked))
    return ServedFigures(
        tokens_per_s=_median(speeds),
        tokens_per_s_low=speeds[0],
        tokens_per_s_high=speeds[-1],
        tokens_per_s_per_user=sum(one.num_tokens / one.answer.total_s for one in asked) / len(asked),
        num_answers=len(asked),
        num_tokens=sum(one.num_tokens for one in asked),
        num_repetitive=sum(repetitive),
        ttft=latency([one.answer.chunk_times_s[:1] for one in asked], seed=seed),
        tpot=latency([_tpot(one) for one in asked], seed=seed),
        itl=latency([[b - a for a, b in pairwise(one.answer.chunk_times_s)] for one in asked], seed=seed),
        accepted=accepted,
        accepted_straight=acceptance_of(straight, depth, seed=seed) if any(repetitive) else None,
        by_set=_parts(asked, lambda one: one.set, depth, seed),
        by_context=_parts(asked, _context, depth, seed),
    )


def acceptance_of(asked: Sequence[Asked], depth: int, *, seed: int) -> Accepted | None:
    """From the counts that came with the answers; None if none did."""
    requests = [found for one in asked if (found := one.answer.counts.acceptance) is not None and found.rounds]
    if not requests:
        return None
    total = pooled(requests, depth)
    low, high = bootstrap(requests, _ratio, seed=seed)
    return Accepted(
        accept_length=total.accept_length,
        low=low,
        high=high,
        request_mean=request_mean(requests),
        per_position=total.per_position,
        rounds=total.rounds,
        num_answers=len(requests),
        source="answers",
    )


def _of_counters(counted: Acceptance | None, number: int) -> Accepted | None:
    if counted is None or not counted.rounds:
        return None
    length = counted.accept_length
    return Accepted(
        accept_length=length,
        low=length,
        high=length,
        request_mean=None,
        per_position=counted.per_position,
        rounds=counted.rounds,
        num_answers=number,
        source="counters",
    )


def _ratio(requests: Sequence[Acceptance]) -> float:
    return sum(request.num_tokens for request in requests) / sum(request.rounds for request in requests)


def latency(values: Sequence[Sequence[float]], *, seed: int) -> Latency | None:
    """Mean with its interval over answers, and percentiles over all values.

    Args:
        values: per answer; answers without any are left out.
    """
    every = sorted(value for of_answer in values for value in of_answer)
    if not every:
        return None
    # Sums per answer, not single gaps: those of one answer are not independent.
    sums = [(sum(of_answer), len(of_answer)) for of_answer in values if of_answer]
    low, high = bootstrap(sums, lambda drawn: sum(s for s, _ in drawn) / sum(n for _, n in drawn), seed=seed)
    percentiles = {share: percentile(every, share) for share in SHARES}
    return Latency(mean=sum(every) / len(every), low=low, high=high, percentiles=percentiles, number=len(every))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Linear between the two nearest of at least one value in rising order."""
    place = (len(ordered) - 1) * share / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def bootstrap(values: Sequence[_T], statistic: Callable[[Sequence[_T]], float], *, seed: int) -> tuple[float, float]:
    """95 % interval of a statistic over at least one value, resampled."""
    chance = random.Random(seed)
    found = sorted(statistic(chance.choices(values, k=len(values))) for _ in range(NUM_RESAMPLES))
    return found[int(_TAIL * NUM_RESAMPLES)], found[int((1 - _TAIL) * NUM_RESAMPLES) - 1]


def _tpot(one: Asked) -> list[float]:
    times, tokens = one.answer.chunk_times_s, one.answer.chunk_tokens
    later = one.num_tokens - tokens[0] if tokens else 0
    return [(times[-1] - times[0]) / later] if later > 0 and len(times) > 1 else []


def _repeats(one: Asked) -> bool:
    ids: Sequence[Any] = one.answer.output_ids or one.answer.text.split()
    return repetition_share([ids]) > REPETITIVE


def _parts(asked: Sequence[Asked], name: Callable[[Asked], str], depth: int, seed: int) -> dict[str, Accepted]:
    """Acceptance by part; {} where there is one part only."""
    parts: dict[str, list[Asked]] = {}
    for one in asked:
        parts.setdefault(name(one), []).append(one)
    found = {part: acceptance_of(own, depth, seed=seed) for part, own in parts.items()} if len(parts) > 1 else {}
    return {part: accepted for part, accepted in found.items() if accepted is not None}


def _context(one: Asked) -> str:
    """The class of its prompt's length: "< 512", "512 - 1023" …"""
    length, before = one.answer.num_prompt_tokens, 0
    if length is None:
        return "unknown"
    for end in _CONTEXTS:
        if length < end:
            return f"{before} - {end - 1}"
        before = end
    return f"from {before}"


def _median(ordered: Sequence[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
