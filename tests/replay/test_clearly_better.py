"""A difference between two replays counts when it is larger than what few texts do by chance."""

import random
from collections.abc import Sequence

from eyas.records.eval_record import RowResult
from eyas.replay.figures import is_clearly_better


def rows(num: int, rate: float, seed: int, num_tokens: int = 150) -> list[RowResult]:
    """Texts of equal length whose drafts (K = 5) are each accepted with this probability."""
    chance, found = random.Random(seed), []
    for i in range(num):
        accepted: list[int] = []
        while sum(accepted) + len(accepted) < num_tokens:
            run = next((k for k in range(5) if chance.random() >= rate), 5)
            accepted.append(run)
        found.append(RowResult(id=str(i), set="chat", accepted=tuple(accepted)))
    return found


def share(num: int, one: float, other: float, *, repeats: int = 60) -> float:
    seeds: Sequence[int] = range(repeats)
    return sum(is_clearly_better(rows(num, one, 2 * s), rows(num, other, 2 * s + 1)) for s in seeds) / len(seeds)


def test_two_texts_tell_a_wrong_switch_from_a_right_one():
    assert share(2, 0.55, 0.2) > 0.98


def test_drafts_that_are_equally_good_are_not_told_apart():
    assert share(2, 0.5, 0.5) < 0.02
    assert share(12, 0.5, 0.5) < 0.02


def test_a_small_difference_needs_many_texts():
    assert share(2, 0.54, 0.5) < 0.1
    assert share(200, 0.54, 0.5, repeats=10) > 0.8


def test_the_worse_one_is_never_better_and_too_little_text_says_nothing():
    assert share(12, 0.4, 0.5) == 0
    assert not is_clearly_better(rows(1, 0.9, 1, num_tokens=10), rows(1, 0.0, 1, num_tokens=10))
