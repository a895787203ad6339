"""Where rows are padded, a step is divided by length: same rows, same curve, little padding."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyas.data.text.tokenise import TokenRow
from eyas.models.target import Target
from eyas.train.config import TrainConfig
from eyas.train.optimise.ranks import Ranks
from eyas.train.optimise.step_outcome import read_steps
from eyas.train.optimise.trainer import Trainer
from eyas.train.preflight.starting_draft import initialise
from eyas.train.rows.packing import even_micro_batches, micro_batches, pack
from live_trainer import live_trainer
from tiny_draft import MLA, tiny_draft
from tiny_target import tiny_target

V = 64
PADDED: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"qk_norm": True}),
    ("llama", {"attention_bias": True, "fc_bias": True}),
    ("llama", MLA),
    ("gpt_oss", {}),
]


def rows_of(*lengths: int) -> list[TokenRow]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [
        TokenRow(
            tuple(torch.randint(3, V, (length,), generator=generator).tolist()),
            tuple((torch.arange(length) % 5 >= 2).tolist()),
        )
        for length in lengths
    ]


def positions(parts: list[list[TokenRow]]) -> int:
    return sum(len(part) * max(len(row.token_ids) for row in part) for part in parts)


@given(st.lists(st.integers(1, 60), max_size=25), st.integers(1, 200))
def test_every_row_is_in_one_run_of_bounded_size_and_no_plain_division_costs_less(lengths, most):
    rows = rows_of(*lengths)
    parts = even_micro_batches(rows, most)

    assert sorted(map(id, rows)) == sorted(id(row) for part in parts for row in part)
    assert all(len(part) == 1 or positions([part]) <= most for part in parts)
    plain = [part for whole in micro_batches(rows, most) for part in _fitting(whole, most)]
    assert positions(parts) + len(parts) * most / 16 <= positions(plain) + len(plain) * most / 16 + 1e-6


def _fitting(part: list[TokenRow], most: int) -> list[list[TokenRow]]:
    """As it is, where it fits with its padding; else each row alone."""
    return [part] if positions([part]) <= most else [[row] for row in part]


def test_a_long_row_among_short_ones_pads_none_of_them():
    parts = even_micro_batches(rows_of(10, 11, 200, 9, 10, 10), 4096)
    assert [[len(row.token_ids) for row in part] for part in parts] == [[9, 10, 10, 10, 11], [200]]


def trainer_of(kind: str, shape: dict[str, Any], micro_batch_tokens: int, ranks: Ranks | None = None) -> Trainer:
    target = Target(tiny_target(kind, seed=3, num_hidden_layers=4))
    sizes = {"target_hidden_size": 32, "vocab_size": V, "draft_vocab_size": V, "embedding": "target"}
    draft = tiny_draft(**{"aux_boundaries": (1, 2, 3), **shape, **sizes})
    draft._shared = (target.parts.embedding, None)
    initialise(draft, target.frozen, seed=0)
    config = TrainConfig(ttt_steps=3, micro_batch_tokens=micro_batch_tokens, grad_clip=1e9)
    return live_trainer(draft.train(), target, config, lr=1e-3, num_steps=2, ranks=ranks or Ranks())


ROWS = rows_of(30, 7, 12, 44, 8, 29, 13)


@pytest.mark.parametrize(("kind", "shape"), PADDED)
def test_the_division_changes_neither_loss_nor_gradient_of_a_step(kind, shape):
    found = []
    for most in (1, 60, 4096):
        trainer = trainer_of(kind, shape, most)
        (outcome,), error = read_steps([trainer.start_step(ROWS, 0)])
        assert error is None
        found.append((outcome.loss, [p.grad for p in trainer.optimiser.parameters]))
    (loss, gradients), *others = found
    for other_loss, other_gradients in others:
        assert other_loss == pytest.approx(loss, rel=2e-5)
        for mine, theirs in zip(gradients, other_gradients, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize(("kind", "shape"), PADDED[::3])
def test_two_ranks_together_have_the_gradient_of_one(kind, shape, monkeypatch):
    monkeypatch.setattr(Ranks, "sum_in_place", lambda self, tensors: None)
    whole, *parts = (trainer_of(kind, shape, 60, Ranks(rank, size)) for rank, size in ((0, 1), (0, 2), (1, 2)))
    pending = [trainer.start_step(ROWS, 0) for trainer in (whole, *parts)]

    torch.testing.assert_close(pending[1].figures + pending[2].figures, pending[0].figures, rtol=2e-5, atol=1e-5)
    for one, *two in zip(*(t.optimiser.parameters for t in (whole, *parts)), strict=True):
        torch.testing.assert_close(two[0].grad + two[1].grad, one.grad, rtol=1e-3, atol=2e-5)


def micro_batches_of(trainer: Trainer, monkeypatch) -> tuple[list[list[TokenRow]], float]:
    seen = list[list[TokenRow]]()
    with monkeypatch.context() as patch:
        patch.setattr("eyas.train.optimise.trainer.pack", lambda rows, *more: seen.append(rows) or pack(rows, *more))
        pending = trainer.start_step(ROWS, 0)
    return seen, pending.padding_share


def test_what_is_padded_goes_by_length_and_says_how_much_padding_there_is(monkeypatch):
    seen, share = micro_batches_of(trainer_of("llama", {"qk_norm": True}, 60), monkeypatch)
    assert seen == even_micro_batches(ROWS, 60)
    assert share == pytest.approx(1 - sum(len(row.token_ids) for row in ROWS) / positions(seen))
    assert share < 0.2


def test_what_is_packed_keeps_the_order_of_its_rows(monkeypatch):
    seen, share = micro_batches_of(trainer_of("llama", {}, 60), monkeypatch)
    assert seen == micro_batches(ROWS, 60)
    assert share == pytest.approx(len(seen) / (len(seen) + sum(len(row.token_ids) for row in ROWS)))
