"""The forward recursion over round starts gives what many simulated rounds give."""

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.parity.sampled_drafts import expected_counts


def simulated(chances: list[list[float]], num_prompt: int, num_total: int, draw: random.Random) -> list[int]:
    depth = len(chances[0])
    counts, newest = [0] * (depth + 1), num_prompt
    while newest < num_total - 1:
        counts[0] += 1
        accepted = 0
        while accepted < depth and draw.random() < chances[newest - 1][accepted]:
            accepted += 1
            counts[accepted] += 1
        newest += accepted + 1
    return counts


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 4), st.integers(2, 12), st.integers(0, 10**6))
def test_the_mean_is_that_of_many_simulations(depth, num_answer, seed):
    draw = random.Random(seed)
    num_prompt, num_total = 2, 2 + num_answer
    chances = [[draw.random() if t + 2 + k < num_total else 0.0 for k in range(depth)] for t in range(num_total)]
    runs = 4000

    expected = expected_counts(torch.tensor(chances, dtype=torch.float64), num_prompt, num_total)

    found = [simulated(chances, num_prompt, num_total, draw) for _ in range(runs)]
    means = [sum(column) / runs for column in zip(*found, strict=True)]
    for mean, wanted, variance in zip(means, expected.mean, expected.variance, strict=True):
        assert abs(mean - wanted) < 5 * (variance / runs) ** 0.5 + 0.02


def test_with_certain_chances_it_is_the_walk_itself():
    chances = torch.tensor([[1.0, 0.0]] * 6 + [[0.0, 0.0]] * 2, dtype=torch.float64)

    expected = expected_counts(chances, 2, 8)

    assert expected.mean == (3.0, 3.0, 0.0)
    assert expected.variance == (0.0, 0.0, 0.0)
