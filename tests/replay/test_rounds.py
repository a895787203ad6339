from hypothesis import given
from hypothesis import strategies as st

from eyas.decode.accept_length import Acceptance
from eyas.replay.replay import walk_rounds


def test_rounds_start_after_the_prefill_s_token_and_skip_what_was_accepted():
    #          index: 0  1  2  3  4  5  6  7
    accepted_from = [9, 9, 2, 9, 9, 0, 1, 9]  # 9: never a round's start

    # prompt 0-2, prefill gives 3; from index 2: two drafts and a bonus (4, 5, 6); from 5: a bonus (7), the end
    assert walk_rounds(accepted_from, num_prompt=3, num_total=8) == (2, 0)


def test_a_response_of_one_token_has_no_round():
    assert walk_rounds([0] * 4, num_prompt=3, num_total=4) == ()


def test_the_last_round_counts_its_bonus_beyond_the_text():
    # prefill gives index 1; the only round accepts 2 and 3, the last recorded ones, and gains one token more
    counts = walk_rounds([2, 0, 0, 0], num_prompt=1, num_total=4)

    assert Acceptance.of_rounds(counts, 5).num_tokens == 3


@given(st.data())
def test_every_recorded_token_after_the_prefill_is_gained_exactly_once(data):
    num_prompt = data.draw(st.integers(1, 5))
    num_total = num_prompt + data.draw(st.integers(1, 30))
    depth = data.draw(st.integers(1, 7))
    accepted = [data.draw(st.integers(0, max(0, min(depth, num_total - 2 - t)))) for t in range(num_total)]

    counts = walk_rounds(accepted, num_prompt, num_total)

    gained = Acceptance.of_rounds(counts, depth).num_tokens
    assert gained - (num_total - num_prompt - 1) in (0, 1)
