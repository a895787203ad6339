"""Spread over repeats, and a bootstrap interval of a ratio of times over prompts. Plain Python, seeded."""

import random
from collections.abc import Sequence
from statistics import median

from eyas.records.bench_record import Spread

NUM_RESAMPLES = 2000
_TAIL = 0.025  # each side of a 95 % interval


def spread(values: Sequence[float]) -> Spread:
    """Median, minimum and maximum of at least one value."""
    return Spread(median=median(values), minimum=min(values), maximum=max(values))


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
