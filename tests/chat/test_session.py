"""A conversation: answers are those of plain decoding, whatever ends them, and later turns know the earlier ones."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.chat.prompt_reader import PromptTooLong
from eyas.chat.session import ChatSession, ChatSettings
from eyas.chat.text_stream import Piece
from eyas.decode.sampling import Sampling
from eyas.engine.engine import Engine
from eyas.models.chat_prompt import TemplateFailed
from eyas.talk import Silent
from stub_models import StubTarget, moody_draft, right_draft
from stub_reader import letter_reader

GREEDY = Sampling()


def session(depth: int | None, *, context: int | None = None, end: int | None = None, is_raw: bool = False, **more):
    draft = None if depth == 0 else moody_draft()
    reader = letter_reader(frozenset() if end is None else frozenset({end}), context, is_raw=is_raw)
    talk = Silent()
    made = ChatSession(Engine(StubTarget(), draft), reader, ChatSettings(depth=depth, **more), talk)
    return made, talk


@settings(max_examples=40, deadline=None)
@given(
    depth=st.sampled_from([1, 3, 5, None]),
    prompts=st.lists(st.text("abcdefgh", min_size=1, max_size=4), min_size=1, max_size=3),
    num=st.integers(1, 30),
    stops=st.lists(st.text("abcdefghijklm", min_size=1, max_size=2), max_size=2),
    end=st.none() | st.integers(0, 12),
    sampling=st.builds(Sampling, temperature=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 9)),
)
def test_a_conversation_with_a_draft_is_the_one_without(depth, prompts, num, stops, end, sampling):
    """Sampled ones too: greedy drafts are kept where the token drawn from the target is theirs, one draw a token."""
    options = {"max_new_tokens": num, "stops": stops, "end": end, "sampling": sampling}
    plain, _ = session(0, **options)
    drafting, _ = session(depth, **options)

    for prompt in prompts:
        expected, got = plain.answer(prompt), drafting.answer(prompt)
        assert (got.text, got.generation.ids) == (expected.text, expected.generation.ids)
        assert (got.finish, got.seed) == (expected.finish, expected.seed)
        assert got.num_prompt_tokens == expected.num_prompt_tokens
        assert got.generation.acceptance.num_tokens >= len(got.generation.ids) - 1
        assert not any(stop in got.text for stop in stops)


def test_later_turns_read_the_earlier_ones_and_reset_forgets_them():
    talking, _ = session(0, max_new_tokens=5)
    first = talking.answer("ab")
    second = talking.answer("ab")

    assert first.num_prompt_tokens == len("uabm")
    assert second.num_prompt_tokens == len("uab" + "a" + first.text + "uabm")
    talking.reset()
    assert talking.answer("ab").text == first.text


def test_a_system_message_comes_first_and_survives_a_reset():
    talking, _ = session(0, system="xyz")
    sizes = [talking.answer("a").num_prompt_tokens]
    talking.reset()
    sizes.append(talking.answer("a").num_prompt_tokens)

    assert sizes == [len("sxyzuam")] * 2


def test_raw_prompts_are_read_as_they_are_and_know_nothing_of_each_other():
    talking, _ = session(0, is_raw=True, max_new_tokens=5)
    first, second = talking.answer("ab"), talking.answer("ab")

    assert (first.num_prompt_tokens, second.num_prompt_tokens) == (2, 2)
    assert first.text == second.text


def test_pieces_come_with_the_origin_that_the_generation_has():
    for num in range(1, 14):  # so that the length cuts rounds at every place
        shown: list[Piece] = []
        talking = ChatSession(
            Engine(StubTarget(), right_draft()), letter_reader(), ChatSettings(depth=3, max_new_tokens=num), Silent()
        )
        text = talking.answer("ab", shown.append).generation

        assert [piece.is_draft for piece in shown] == [origin > 0 for origin in text.origins]


def test_enough_ends_the_answer_after_its_round_and_it_counts_as_said():
    talking, _ = session(3, max_new_tokens=50)
    shown: list[Piece] = []
    answer = talking.answer("ab", shown.append, lambda: len(shown) >= 4)

    assert answer.finish == "interrupted"
    assert 4 <= len(answer.generation.ids) < 9
    assert answer.text == "".join(piece.text for piece in shown)
    assert talking.answer("c").num_prompt_tokens == len("uab" + "a" + answer.text + "ucm")


def test_plain_turns_speculation_off_and_nothing_else():
    talking, _ = session(3, max_new_tokens=12)
    talking.is_plain = True
    plain = talking.answer("ab")
    talking.reset()
    talking.is_plain = False

    assert (plain.accept_length, plain.generation.num_draft_tokens) == (None, 0)
    drafted = talking.answer("ab")
    assert drafted.text == plain.text
    assert drafted.accept_length is not None


def test_rounds_are_timed_once_a_session():
    talking, talk = session(None, max_new_tokens=12)
    for _ in range(3):
        talking.answer("ab")

    assert talk.lines == ["timing rounds of every depth, once"]


def test_every_sampled_answer_has_a_seed_of_its_own_and_can_be_repeated():
    sampling = Sampling(temperature=1.5, seed=4)
    talking, _ = session(0, sampling=sampling, max_new_tokens=12, is_raw=True)
    answers = [talking.answer("ab") for _ in range(3)]
    again, _ = session(0, sampling=Sampling(temperature=1.5, seed=5), max_new_tokens=12, is_raw=True)

    assert [answer.seed for answer in answers] == [4, 5, 6]
    assert all(a.text != b.text for a, b in pairwise(answers))
    assert again.answer("ab").text == answers[1].text


def test_an_answer_is_cut_to_the_context_and_that_is_said():
    talking, talk = session(0, context=10, max_new_tokens=50)
    answer = talking.answer("ab")

    assert (len(answer.generation.ids), answer.finish) == (6, "length")
    assert talk.notes == ["the answer is limited to 6 tokens: the target's context is 10"]


def test_a_prompt_that_fills_the_context_is_refused_and_not_said():
    talking, _ = session(0, context=10, max_new_tokens=2)
    with pytest.raises(PromptTooLong, match=r"the prompt has 10 tokens(.|\n)*context is 10"):
        talking.answer("abcdefgh")
    assert talking.answer("abcdefg").num_prompt_tokens == 9


def test_a_template_that_refuses_is_named_with_a_way_out():
    talking, _ = session(0, system="refuse")
    with pytest.raises(TemplateFailed, match=r"eyas chat: system, user(.|\n)*System role not supported(.|\n)*--raw"):
        talking.answer("a")
