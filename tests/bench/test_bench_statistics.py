"""Spread, bootstrap on numbers whose answer is known."""

import random

from eyas.bench.compare import ratio_interval
from eyas.bench.measure import spread


def test_spread_is_median_and_extremes():
    found = spread([3.0, 1.0, 10.0])

    assert (found.median, found.minimum, found.maximum) == (3.0, 1.0, 10.0)


def test_a_constant_ratio_has_an_interval_of_no_width():
    plain = [[2.0, 2.2], [4.0, 4.4], [6.0, 6.6]]

    ratio, low, high = ratio_interval(plain, [[s / 2 for s in row] for row in plain], seed=0)

    assert (round(ratio, 9), round(low, 9), round(high, 9)) == (2.0, 2.0, 2.0)


def test_the_interval_covers_the_true_ratio_about_as_often_as_it_says():
    chance, covered = random.Random(1), 0
    for trial in range(60):
        plain = [[chance.uniform(0.9, 1.1) for _ in range(3)] for _ in range(12)]
        fast = [[chance.uniform(0.9, 1.1) / 1.5 for _ in range(3)] for _ in range(12)]
        _, low, high = ratio_interval(plain, fast, seed=trial)
        covered += low <= 1.5 <= high

    assert covered >= 51  # 85 % of 60: a 95 % interval that covers less is broken


def test_the_same_seed_gives_the_same_interval():
    chance = random.Random(2)
    plain, fast = ([[chance.random() for _ in range(3)] for _ in range(9)] for _ in range(2))

    assert ratio_interval(plain, fast, seed=3) == ratio_interval(plain, fast, seed=3)
    assert ratio_interval(plain, fast, seed=3) != ratio_interval(plain, fast, seed=4)
