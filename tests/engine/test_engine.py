"""Speculative decoding gives the text of plain decoding, whatever the draft; and the counts of what was accepted."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.engine.engine import DraftMissing, DraftTokensInvalid, Engine, Limits, LimitsInvalid, PromptEmpty
from eyas.engine.generation import BONUS, PREFILL, Generation
from eyas.engine.known_ids import PromptOutsideVocabulary
from eyas.engine.open_engine import EngineOptionsInvalid, open_engine
from eyas.errors import EyasError
from eyas.models.placement import place
from eyas.talk import Silent
from stub_models import VOCAB, StubDraft, StubTarget, moody_draft, next_logits, right_draft, wrong_draft

DRAFTS = {"always right": right_draft, "never right": wrong_draft, "sometimes right": moody_draft}


def plain_loop(prompt: list[int], num: int, stop_ids: frozenset[int] = frozenset()) -> list[int]:
    """The text by its definition: no engine, no cache."""
    ids = list(prompt)
    for _ in range(num):
        ids.append(int(next_logits(ids[-2] if len(ids) > 1 else 0, ids[-1]).argmax()))
        if ids[-1] in stop_ids:
            break
    return ids[len(prompt) :]


def generate(draft: StubDraft | None, k: int, prompt: list[int], limits: Limits) -> Generation:
    return Engine(StubTarget(), draft).generate(prompt, limits, num_draft_tokens=k)


@pytest.mark.parametrize("k", range(1, 8))
@pytest.mark.parametrize("kind", DRAFTS)
@settings(max_examples=20, deadline=None)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5),
    num=st.integers(1, 25),
    stop_id=st.none() | st.integers(0, VOCAB - 1),
)
def test_speculative_text_is_plain_text(kind: str, k: int, prompt: list[int], num: int, stop_id: int | None):
    stop_ids = frozenset() if stop_id is None else frozenset({stop_id})
    limits = Limits(max_new_tokens=num, stop_ids=stop_ids)

    text = generate(DRAFTS[kind](), k, prompt, limits)

    assert text.ids == plain_loop(prompt, num, stop_ids)
    assert text.ids == generate(None, 0, prompt, limits).ids
    assert text.finish == ("stop" if text.ids[-1] in stop_ids else "length")


def test_a_draft_that_is_always_right_gains_k_plus_one_tokens_a_pass():
    target = StubTarget()

    text = Engine(target, right_draft()).generate([1, 2], Limits(max_new_tokens=1 + 4 * 5), num_draft_tokens=4)

    assert text.acceptance.accept_length == 5
    assert target.num_passes == 1 + 4
    assert text.origins == [PREFILL] + 4 * [1, 2, 3, 4, BONUS]


def test_a_draft_that_is_never_right_gains_one_token_a_pass():
    text = generate(wrong_draft(), 3, [1, 2], Limits(max_new_tokens=8))

    assert text.acceptance.accept_length == 1
    assert text.origins == [PREFILL] + 7 * [BONUS]


def test_plain_decoding_is_the_same_code_with_no_drafts():
    target = StubTarget()

    text = Engine(target).generate([1, 2], Limits(max_new_tokens=8))

    assert target.num_passes == 8
    assert text.acceptance.accept_length == 1


@pytest.mark.parametrize(("num_room", "counted"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 4)])
def test_drafts_past_the_limit_do_not_count(num_room: int, counted: int):
    text = generate(right_draft(), 4, [1, 2], Limits(max_new_tokens=1 + num_room))

    assert text.accepted == [counted]
    assert len(text.ids) == 1 + num_room


def test_drafts_past_a_stop_do_not_count_and_its_bonus_does():
    plain = plain_loop([1, 2], 4)
    assert plain[2] not in plain[:2], "the stop id must not come earlier"

    text = generate(right_draft(), 4, [1, 2], Limits(max_new_tokens=20, stop_ids=frozenset({plain[2]})))

    assert (text.ids, text.finish) == (plain[:3], "stop")
    assert text.accepted == [2]
    assert text.acceptance.num_tokens == 3  # two drafts and the bonus that stands beyond the text


def test_every_round_reports_its_tokens_as_they_come():
    heard: list[tuple[int, ...]] = []
    engine = Engine(StubTarget(), right_draft())

    text = engine.generate([1, 2], Limits(max_new_tokens=7), num_draft_tokens=3, on_tokens=heard.append)

    assert [len(ids) for ids in heard] == [1, 4, 2]
    assert [i for ids in heard for i in ids] == text.ids


def test_a_listener_ends_the_text_where_it_says_so():
    heard: list[tuple[int, ...]] = []

    def hears(ids: Sequence[int]) -> bool:
        heard.append(tuple(ids))
        return len(heard) == 2

    text = Engine(StubTarget(), right_draft()).generate(
        [1, 2], Limits(max_new_tokens=20), num_draft_tokens=3, on_tokens=hears
    )

    assert (text.finish, text.ids) == ("caller", plain_loop([1, 2], 5))
    assert text.accepted == [3]


def test_a_text_that_ended_by_itself_has_not_been_ended_by_its_listener():
    text = Engine(StubTarget()).generate([1, 2], Limits(max_new_tokens=1), on_tokens=lambda ids: True)

    assert text.finish == "length"


def test_a_cut_text_counts_the_drafts_that_are_left_and_the_bonus_beyond():
    text = generate(right_draft(), 3, [1, 2], Limits(max_new_tokens=9))
    assert (text.accepted, text.origins) == ([3, 3], [-1, 1, 2, 3, 0, 1, 2, 3, 0])

    text.cut(7)

    assert (text.ids, text.origins) == (plain_loop([1, 2], 7), [-1, 1, 2, 3, 0, 1, 2])
    assert (text.accepted, text.acceptance.num_tokens) == ([3, 2], 7)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (lambda e: e.generate([], Limits()), PromptEmpty),
        (lambda e: e.generate(torch.tensor([], dtype=torch.int64), Limits()), PromptEmpty),
        (lambda e: e.generate([1, VOCAB], Limits()), PromptOutsideVocabulary),
        (lambda e: e.generate([-1], Limits()), PromptOutsideVocabulary),
        (lambda e: e.generate([1.0], Limits()), PromptOutsideVocabulary),
        (lambda e: e.generate("text", Limits()), PromptOutsideVocabulary),
        (lambda e: e.generate(3, Limits()), PromptOutsideVocabulary),
        (lambda e: e.generate([1], Limits(), num_draft_tokens=-1), DraftTokensInvalid),
        (lambda e: e.generate([1], Limits(), num_draft_tokens=2.5), DraftTokensInvalid),
        (lambda e: e.adaptive([1], 0), DraftTokensInvalid),
        (lambda e: e.adaptive([1], -2), DraftTokensInvalid),
        (lambda e: e.adaptive([]), PromptEmpty),
        (lambda e: e.adaptive([VOCAB]), PromptOutsideVocabulary),
        (lambda e: Engine(e.target).generate([1], Limits(), num_draft_tokens=2), DraftMissing),
        (lambda e: Engine(e.target).adaptive([1]), DraftMissing),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_computed(
    request_: Callable[[Engine], object], error: type[EyasError]
):
    target = StubTarget()

    with pytest.raises(error, match=error.code):
        request_(Engine(target, right_draft()))
    assert target.num_passes == 0


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5"),
        ({"max_new_tokens": None}, "max_new_tokens is None"),
        ({"max_new_tokens": -1, "stop_ids": 2}, "max_new_tokens is -1.*stop_ids is 2"),
        ({"stop_ids": "</s>"}, "stop_ids is '</s>'"),
    ],
)
def test_limits_at_which_no_text_ends_are_refused(values: dict[str, object], why: str):
    with pytest.raises(LimitsInvalid, match=why):
        Limits(**values)  # type: ignore[arg-type]


def test_an_engine_is_not_opened_with_what_would_crash_or_mean_something_else():
    words = {"rounds": "fast", "quantize": "int3"}

    with pytest.raises(EngineOptionsInvalid, match=r"num_threads is 0.*rounds is 'fast'.*quantize is 'int3'"):
        open_engine(Path("no"), None, place("float32", "cpu"), cache=Path("no"), num_threads=0, talk=Silent(), **words)  # type: ignore[arg-type]


def test_a_prompt_may_be_integers_of_any_library():
    engine = Engine(StubTarget())

    assert engine.generate(torch.tensor([1, 2]), Limits(max_new_tokens=5)).ids == plain_loop([1, 2], 5)  # type: ignore[arg-type]
