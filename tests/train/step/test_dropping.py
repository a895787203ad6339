"""The feedback that is dropped: which, how much, and that what is dropped is the state alone."""

import copy

import pytest
import torch

from eyas.train.config import TrainConfig, TrainConfigInvalid
from eyas.train.rows.packing import pack
from eyas.train.step.captured import run_again
from eyas.train.step.dropping import FeedbackDropping
from eyas.train.step.unroll import FusedUnroll, make_unroll
from live_trainer import live_trainer
from tiny_rows import rows_of, tiny

CPU = torch.device("cpu")


def test_its_share_of_the_positions_is_dropped_anew_at_each_step_and_seed():
    dropping = FeedbackDropping(0.3, CPU)
    seen = []
    for seed in ((0, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (1, 0, 0, 0)):
        dropping.reseed(*seed)
        seen += [dropping.kept(step, 20_000)[:, 0] for step in (0, 1)]
    for number, one in enumerate(seen):
        assert float((~one).double().mean()) == pytest.approx(0.3, abs=0.02)
        for other in seen[:number]:  # 0.3² are dropped in both if they know nothing of each other
            assert float((~one & ~other).double().mean()) == pytest.approx(0.09, abs=0.012)
    dropping.reseed(0, 0, 0, 0)
    assert torch.equal(dropping.kept(0, 20_000)[:, 0], seen[0])


def test_where_the_state_is_dropped_the_next_step_reads_zeros_and_where_it_is_kept_nothing_changes():
    draft, _ = tiny()
    packed = pack(rows_of(20), 2, CPU)
    aux = torch.randn(packed.length, draft.fc.in_features, generator=torch.Generator().manual_seed(0))
    plain, dropped = (FusedUnroll(draft, 2, torch.float32, share) for share in (0.0, 0.5))
    everything = copy.deepcopy(draft)
    with torch.no_grad():
        wanted, found = plain.states(packed, aux), dropped.states(packed, aux)
        none = FusedUnroll(everything, 2, torch.float32, 0.999999).states(packed, aux)
    kept = dropped.dropping.kept(0, packed.length)[packed.picks[1], 0]

    assert 0 < int(kept.sum()) < len(kept)
    torch.testing.assert_close(found[0], wanted[0])
    torch.testing.assert_close(found[1][kept], wanted[1][kept])
    torch.testing.assert_close(found[1][~kept], none[1][~kept])
    assert bool((found[1][~kept] - wanted[1][~kept]).abs().amax(1).gt(1e-3).all())


def test_a_recorded_step_drops_what_a_computed_one_drops():
    config = TrainConfig(ttt_steps=3, feedback_dropout=0.4)
    batches = [rows_of(21, 6, seed=1), rows_of(9, 15, seed=2), rows_of(21, 6, seed=3)]
    losses = []
    for record in (None, run_again):
        trainer = live_trainer(*tiny(), config, lr=5e-3, num_steps=3, record=record)
        losses.append([trainer.train_step(rows, step).loss for step, rows in enumerate(batches)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    without = live_trainer(*tiny(), TrainConfig(ttt_steps=3), lr=5e-3, num_steps=3)
    assert without.train_step(batches[0], 0).loss != pytest.approx(losses[0][0], rel=1e-4)


def test_a_draft_through_its_modules_refuses_to_drop():
    draft, _ = tiny()
    with pytest.raises(TrainConfigInvalid, match="--feedback-dropout"):
        make_unroll(draft, 2, torch.float32, is_fused=False, dropped_share=0.1)
