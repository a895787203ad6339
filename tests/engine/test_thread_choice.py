"""More threads are used only where they are measured to be faster."""

import pytest

from eyas.engine.open_engine import candidates, choose_threads


@pytest.mark.parametrize(("most", "tried"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_powers_of_two_and_the_most(most: int, tried: list[int]):
    assert candidates(most) == tried


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({1: 1.0, 2: 0.6, 4: 0.4}, 4),
        ({1: 1.0, 2: 0.6, 4: 5.0}, 2),  # busy cores: four threads wait for each other
        ({1: 1.0, 2: 0.97, 4: 0.96}, 1),  # not worth it
    ],
)
def test_the_fastest_wins_if_it_is_worth_its_threads(seconds: dict[int, float], chosen: int):
    now = 0.0

    def run(threads: int) -> None:
        nonlocal now
        now += seconds[threads]

    assert choose_threads(4, run, lambda: now) == chosen
