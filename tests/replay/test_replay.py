import pytest
import torch

from eyas.decode.accept_length import Acceptance, pooled
from eyas.models.draft import AuxBoundariesUnknown
from eyas.models.target import Target
from eyas.records.eval_rows import EvalRow
from eyas.replay.replay import RowOutsideVocabulary, accepted_from_everywhere, replay
from eyas.talk import Silent
from plain_loop import plain_loop
from stub_draft import StubDraft, right, wrong
from tiny_draft import tiny_draft
from tiny_target import tiny_target

TEXT = torch.randint(0, 16, (1, 21), generator=torch.Generator().manual_seed(5))


def row_of(ids: list[int], num_prompt: int, name: str = "row") -> EvalRow:
    return EvalRow(id=name, set="test", prompt_ids=tuple(ids[:num_prompt]), response_ids=tuple(ids[num_prompt:]))


def counts_of(guess, num_draft_tokens: int) -> tuple[int, ...]:
    target = Target(tiny_target(vocab_size=16))
    (result,) = replay(target, StubDraft(guess), [row_of(TEXT[0].tolist(), 4)], num_draft_tokens, Silent())
    return result.accepted


def test_a_draft_that_is_always_right_fills_every_round():
    # 16 tokens after the prefill's: five rounds of 2 + 1, and a last one whose only draft inside is accepted
    assert counts_of(right, 2) == (2, 2, 2, 2, 2, 1)


def test_a_draft_that_is_never_right_gains_one_token_a_round():
    assert counts_of(wrong, 3) == (0,) * 16


def test_a_draft_that_is_right_until_its_third_guess_is_cut_there():
    assert counts_of(lambda t, k, text: (right, wrong)[k == 2](t, k, text), 5)[:5] == (2,) * 5


def test_nothing_counts_after_a_wrong_guess_even_if_it_is_right():
    assert counts_of(lambda t, k, text: (right, wrong)[k == 0](t, k, text), 5) == (0,) * 16


def test_where_a_round_starts_depends_on_what_was_accepted_before():
    # Right at even round starts only. Prefill's token is index 4, so rounds start from index 3 on.
    guess = lambda t, k, text: (wrong if t % 2 else right)(t, k, text)  # noqa: E731
    # from 3: nothing; from 4: two of two, on to 7: nothing; from 8 …
    assert counts_of(guess, 2) == (0, 2, 0, 2, 0, 2, 0, 2)


def test_drafts_beyond_the_recorded_text_never_count():
    marks = accepted_from_everywhere(StubDraft(right), TEXT, torch.empty(1, 21, 0), 5, [21])

    assert marks[0].tolist() == [5] * 15 + [4, 3, 2, 1, 0, 0]


def test_a_shorter_row_ends_where_it_ends_not_where_its_padding_does():
    ids = torch.cat([TEXT, TEXT.flip(1)])

    marks = accepted_from_everywhere(StubDraft(right), ids, torch.empty(2, 21, 0), 3, [21, 9])

    assert marks[1].tolist() == [3, 3, 3, 3, 3, 2, 1, 0] + [0] * 13


def a_draft_that_is_sometimes_right(model) -> tuple:
    """Vocabulary of 6: even a random draft is right now and then."""
    draft = tiny_draft(vocab_size=6, draft_vocab_size=5, target_hidden_size=32, aux_boundaries=(0, 2, 3), num_layers=2)
    return model, draft


@pytest.mark.parametrize("num_draft_tokens", range(1, 8))
def test_replay_equals_an_independent_draft_verify_loop_round_by_round(num_draft_tokens):
    model, draft = a_draft_that_is_sometimes_right(tiny_target(vocab_size=6, seed=20 + num_draft_tokens))
    rows, expected = [], []
    for first in range(2, 6):
        text, rounds = plain_loop(model, draft, [first, 3, first], num_draft_tokens, num_new=30)
        rows.append(row_of(text, 3))
        expected.append(tuple(rounds))

    results = replay(Target(model), draft, rows, num_draft_tokens, Silent())

    assert [result.accepted for result in results] == expected
    accepted = pooled([Acceptance.of_rounds(r, num_draft_tokens) for r in expected], num_draft_tokens).accepted_at[0]
    assert 0 < accepted < sum(map(len, expected)), "neither always nor never right, else this proves little"


def test_rows_in_batches_give_what_rows_alone_give_in_the_rows_order():
    model, draft = a_draft_that_is_sometimes_right(tiny_target(vocab_size=6))
    rows = [row_of(plain_loop(model, draft, [2, 3], 1, n)[0], 2, str(n)) for n in (5, 30, 9, 17, 2)]

    alone = replay(Target(model), draft, rows, 3, Silent())
    together = replay(Target(model), draft, rows, 3, Silent(), batch_tokens=64)

    assert together == alone
    assert [result.id for result in alone] == ["5", "30", "9", "17", "2"]


def test_a_row_of_another_vocabulary_is_refused():
    with pytest.raises(RowOutsideVocabulary, match="row alien holds token id 99"):
        replay(Target(tiny_target()), StubDraft(right), [row_of([1, 2, 99, 4], 2, "alien")], 3, Silent())


def test_a_draft_without_known_boundaries_is_refused():
    with pytest.raises(AuxBoundariesUnknown):
        replay(Target(tiny_target()), StubDraft(right, None), [row_of([1, 2, 3, 4], 2)], 3, Silent())
