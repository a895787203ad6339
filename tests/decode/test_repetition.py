"""Repeated text is counted, not guessed."""

from hypothesis import given
from hypothesis import strategies as st

from eyas.decode.repetition import repetition_share


def test_repetition_counts_tokens_that_end_a_known_gram():
    assert repetition_share([[1, 2, 3, 4, 5, 6]]) == 0.0
    assert repetition_share([[7] * 8]) == 4 / 5  # five 4-grams, the first is new
    assert repetition_share([[1, 2]]) == 0.0


@given(st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=4))
def test_repetition_is_a_share(texts: list[list[int]]):
    assert 0.0 <= repetition_share(texts) <= 1.0
