import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.decode.accept_length import Acceptance, pooled, request_mean

K = 4
rounds = st.lists(st.integers(0, K), max_size=40)


def test_nothing_accepted_is_one():
    dead = Acceptance.of_rounds([0, 0, 0], num_draft_tokens=3)

    assert dead.accept_length == 1.0
    assert dead.per_position == (0.0, 0.0, 0.0)
    assert dead.accept_rate == 0.0


def test_everything_accepted_is_k_plus_one():
    assert Acceptance.of_rounds([3, 3], num_draft_tokens=3).accept_length == 4.0


def test_joint_and_conditional_acceptance_differ():
    counted = Acceptance.of_rounds([2, 1, 0, 0], num_draft_tokens=2)

    assert counted.per_position == (0.5, 0.25)
    assert counted.conditional == (0.5, 0.5)


def test_pooled_and_request_mean_are_two_numbers():
    short, long = Acceptance.of_rounds([3], 3), Acceptance.of_rounds([0] * 9, 3)

    assert pooled([short, long], 3).accept_length == pytest.approx(1.3)
    assert request_mean([short, long]) == pytest.approx(2.5)


def test_no_rounds_is_not_a_number_rather_than_a_guess():
    assert math.isnan(Acceptance.none(3).accept_length)
    assert math.isnan(request_mean([]))


def test_counts_that_grow_with_the_position_are_refused():
    with pytest.raises(AssertionError):
        Acceptance(rounds=2, accepted_at=(1, 2), proposed_at=(2, 2))


@given(rounds, rounds)
def test_pooling_is_counting_all_rounds_together(a: list[int], b: list[int]):
    assert Acceptance.of_rounds(a, K) + Acceptance.of_rounds(b, K) == Acceptance.of_rounds(a + b, K)


@given(st.lists(st.integers(0, K), min_size=1, max_size=40))
def test_accept_length_is_one_plus_the_sum_of_the_positions(accepted: list[int]):
    counted = Acceptance.of_rounds(accepted, K)

    assert counted.accept_length == pytest.approx(1 + sum(counted.per_position))
    assert counted.num_tokens == sum(accepted) + len(accepted)
