import copy
import dataclasses

import pytest
import torch

from eyas.data.text.tokenise import TokenRow
from eyas.models.draft import Eagle3Draft
from eyas.models.target import Target
from eyas.train.config import TrainConfig
from eyas.train.optimise.optimiser import TrainingDiverged
from eyas.train.optimise.schedule import lr_share
from eyas.train.optimise.step_outcome import read_steps
from eyas.train.rows.packing import micro_batches
from eyas.train.step.distributions import DraftVocabulary, ReferenceDistributions, Teacher
from live_trainer import live_trainer
from plain_trainer import train_plainly
from tiny_rows import D, V, rows_of, tiny

STEPS = 4
# The plain loop sums row by row and the trainer in batches: fp32 rounding is all that may differ.
CLOSE = {"rel": 2e-5, "abs": 2e-5}


def teacher_of(draft: Eagle3Draft, target: Target, row: TokenRow) -> Teacher:
    """At every position of the row."""
    last = target.forward(torch.tensor([row.token_ids])).last[0]
    return ReferenceDistributions().reduce(target.logits(last), DraftVocabulary.of(draft, last.device))


@pytest.mark.parametrize("micro_batch_tokens", [10_000, 20])
def test_the_trainer_agrees_step_by_step_with_a_plain_loop(micro_batch_tokens):
    draft, target = tiny()
    plain_draft = copy.deepcopy(draft)
    config = TrainConfig(ttt_steps=STEPS, micro_batch_tokens=micro_batch_tokens, optimiser="adamw", loss="kl")
    batches = [rows_of(17, 11, seed=1), rows_of(13, seed=2), rows_of(9, 19, 12, seed=3)]
    trainer = live_trainer(draft, target, config, lr=5e-3, num_steps=3)
    outcomes = [trainer.train_step(rows, step) for step, rows in enumerate(batches)]
    plain = train_plainly(
        plain_draft,
        target.model,
        [[(torch.tensor(r.token_ids), r.is_supervised) for r in rows] for rows in batches],
        num_steps=STEPS,
        decay=config.step_decay,
        lrs=[5e-3 * lr_share(step, 3, config) for step in range(3)],
        clip=config.grad_clip,
    )

    for outcome, (loss, accuracy, norm) in zip(outcomes, plain, strict=True):
        assert outcome.loss == pytest.approx(loss, **CLOSE)
        assert outcome.counts.as_record()["accuracy"] == pytest.approx(accuracy)
        assert outcome.grad_norm == pytest.approx(norm, **CLOSE)
    for (name, mine), theirs in zip(draft.named_parameters(), plain_draft.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=2e-5, msg=name)


def test_one_batch_overfit_drives_step_0_accuracy_to_one():
    # `ce`, since under `kl` two choices of the target that are almost equally likely may stay the wrong way round
    draft, target = tiny(draft_vocab_size=V)
    rows, config = rows_of(24, 24), TrainConfig(ttt_steps=3, loss="ce")
    trainer = live_trainer(draft, target, config, lr=1e-2, num_steps=80)
    records = [trainer.train_step(rows, step) for step in range(80)]

    assert records[0].counts.as_record()["accuracy"][0] < 0.3
    last = records[-1].counts.as_record()
    assert last["accuracy"] == [1.0, 1.0, 1.0]
    assert last["joint"] == [1.0, 1.0, 1.0]
    assert records[-1].loss < 0.05 * records[0].loss


def test_a_token_outside_the_draft_vocabulary_counts_as_wrong_and_carries_no_loss():
    draft, target = tiny()
    (row,) = rows = rows_of(30)
    teacher = teacher_of(draft, target, row)
    # the position learnt from is the one before a supervised token; the first two tokens are nobody's second next
    learnt_from = [u for u in range(1, 29) if row.is_supervised[u + 1]]
    is_outside = teacher.argmax_draft[learnt_from] < 0
    assert 0 < int(is_outside.sum()) < len(is_outside), "the case is in the data"
    counts = live_trainer(draft, target, TrainConfig(ttt_steps=1), lr=1e-3, num_steps=1).train_step(rows, 0).counts

    assert int(counts.num_targets[0]) == len(is_outside)
    assert int(counts.num_in_vocab[0]) == int((~is_outside).sum())
    assert int(counts.num_right[0]) <= int(counts.num_in_vocab[0])


def test_the_teacher_is_the_target_restricted_and_renormalised():
    draft, target = tiny()
    (row,) = rows_of(15)
    teacher = teacher_of(draft, target, row)
    logits = target.model(torch.tensor([row.token_ids])).logits[0]
    offered = torch.arange(D) + draft.d2t
    mass = logits.softmax(-1)[:, offered].sum(-1).log()

    torch.testing.assert_close(teacher.log_probs, logits[:, offered].log_softmax(-1), atol=1e-5, rtol=0)
    torch.testing.assert_close(teacher.log_mass, mass, atol=1e-5, rtol=1e-5)
    assert torch.equal(teacher.argmax_ids, logits.argmax(-1))


def test_batch_mates_in_a_packed_sequence_change_nothing():
    draft, target = tiny()
    config = TrainConfig(ttt_steps=STEPS)

    def learn(together: bool) -> tuple[float, torch.Tensor]:
        mine = copy.deepcopy(draft)
        most = 10_000 if together else 1
        trainer = live_trainer(
            mine,
            target,
            dataclasses.replace(config, micro_batch_tokens=most),
            lr=1e-3,
            num_steps=1,
        )
        outcome = trainer.train_step(rows_of(21, 6, 13), 0)
        return outcome.loss, mine.fc.weight.grad

    (loss, grad), (alone_loss, alone_grad) = learn(True), learn(False)
    assert loss == pytest.approx(alone_loss, **CLOSE)
    torch.testing.assert_close(grad, alone_grad, rtol=1e-3, atol=1e-6)


def test_rows_too_short_for_any_step_carry_nothing():
    draft, target = tiny()
    trainer = live_trainer(draft, target, TrainConfig(ttt_steps=STEPS), lr=1e-3, num_steps=1)
    outcome = trainer.train_step([TokenRow((5, 6, 7), (False, False, True)), TokenRow((5,), (True,))], 0)
    assert outcome.counts.num_targets.tolist() == [1, 0, 0, 0]


def test_a_nan_is_named_and_leaves_the_weights_alone():
    draft, target = tiny()
    trainer = live_trainer(draft, target, TrainConfig(ttt_steps=2), lr=1e-3, num_steps=2)
    before = {name: p.detach().clone() for name, p in draft.named_parameters()}
    draft.norm.weight.register_hook(lambda grad: grad * float("nan"))

    with pytest.raises(TrainingDiverged) as caught:
        trainer.train_step(rows_of(20), 1)

    assert caught.value.what == "the gradient of norm.weight is not a finite number"
    assert caught.value.where == "optimiser step 2"
    for name, parameter in draft.named_parameters():
        assert torch.equal(parameter, before[name]), name


def test_target_and_shared_embedding_are_not_trained():
    draft, target = tiny()
    before = [p.clone() for p in target.model.parameters()]
    live_trainer(draft, target, TrainConfig(ttt_steps=2), lr=1e-1, num_steps=1).train_step(rows_of(20), 0)
    assert all(torch.equal(a, b) for a, b in zip(before, target.model.parameters(), strict=True))
    assert not any("embed" in name for name, _ in draft.named_parameters())


def test_micro_batches_keep_order_and_size():
    rows = rows_of(5, 4, 9, 2, 2)
    assert [len(part) for part in micro_batches(rows, 10)] == [2, 1, 2]
    assert [row for part in micro_batches(rows, 10) for row in part] == rows


def test_after_a_nan_no_step_touches_weights_or_moments_until_the_host_looks():
    draft, target = tiny()
    trainer = live_trainer(draft, target, TrainConfig(ttt_steps=2), lr=1e-3, num_steps=5)
    trainer.train_step(rows_of(20), 0)
    kept = {name: p.detach().clone() for name, p in draft.named_parameters()}
    kept_moments = copy.deepcopy(trainer.optimiser.moments())
    poison = draft.norm.weight.register_hook(lambda grad: grad * float("nan"))
    pending = [trainer.start_step(rows_of(20), 1)]
    poison.remove()
    pending += [trainer.start_step(rows_of(20), step) for step in (2, 3)]

    outcomes, error = read_steps(pending)

    assert outcomes == []
    assert error is not None
    assert "norm.weight" in str(error)
    for name, parameter in draft.named_parameters():
        assert torch.equal(parameter, kept[name]), name
    for name, moments in trainer.optimiser.moments().items():
        assert all(torch.equal(moments[kind], kept_moments[name][kind]) for kind in moments), name


def test_steps_read_together_are_those_read_one_by_one():
    lazy, eager = ([], [])
    for outcomes, is_lazy in ((lazy, True), (eager, False)):
        draft, target = tiny()
        trainer = live_trainer(draft, target, TrainConfig(ttt_steps=2), lr=1e-3, num_steps=3)
        if is_lazy:
            outcomes += read_steps([trainer.start_step(rows_of(20, 9), step) for step in range(3)])[0]
        else:
            outcomes += [trainer.train_step(rows_of(20, 9), step) for step in range(3)]
    assert [o.loss for o in lazy] == [o.loss for o in eager]
    assert [o.counts.as_record() for o in lazy] == [o.counts.as_record() for o in eager]
