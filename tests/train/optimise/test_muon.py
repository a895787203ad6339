"""Muon, averaged weights and the guard against plain loops."""

import copy

import pytest
import torch

from eyas.models.draft import Eagle3Draft
from eyas.train.config import TrainConfig
from eyas.train.optimise.muon import orthogonalised
from eyas.train.optimise.schedule import average_keep, lr_share
from live_trainer import live_trainer
from plain_trainer import loss_of
from tiny_rows import rows_of, tiny

STEPS, LR = 3, 5e-3
BATCHES = [rows_of(17, 11, seed=1), rows_of(13, seed=2), rows_of(9, 19, 12, seed=3), rows_of(15, 8, seed=4)]
MUON = TrainConfig(ttt_steps=STEPS, optimiser="muon", loss="kl", weight_decay=20.0, average_share=0.6)


def newton_schulz(matrix: torch.Tensor) -> torch.Tensor:
    x = matrix / matrix.norm()
    for _ in range(5):
        a = x @ x.T if x.shape[0] <= x.shape[1] else x.T @ x
        b = -4.7750 * a + 2.0315 * a @ a
        x = 3.4445 * x + (b @ x if x.shape[0] <= x.shape[1] else x @ b)
    return x


def learn_plainly(draft: Eagle3Draft, model, config: TrainConfig) -> list[torch.Tensor]:
    """Muon for one matrix after the other, AdamW for the rest; gives the average of the weights."""
    between = {n: p for n, p in draft.named_parameters() if p.ndim == 2 and n != "lm_head.weight"}
    others = [(n, p) for n, p in draft.named_parameters() if n not in between]
    momentum = {n: torch.zeros_like(p) for n, p in between.items()}
    average = [p.detach().clone() for p in draft.parameters()]
    adamw = torch.optim.AdamW(
        [{"params": [p], "weight_decay": config.weight_decay if p.ndim == 2 else 0.0} for _, p in others],
        betas=(0.9, 0.95),
    )
    for step, rows in enumerate(BATCHES):
        lr = LR * lr_share(step, len(BATCHES), config)
        plain = [(torch.tensor(r.token_ids), r.is_supervised) for r in rows]
        loss, _, _ = loss_of(draft, model, plain, STEPS, config.step_decay)
        draft.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), config.grad_clip)
        for group in adamw.param_groups:
            group["lr"] = lr
        adamw.step()
        with torch.no_grad():
            for name, p in between.items():
                momentum[name] = 0.95 * momentum[name] + 0.05 * p.grad
                change = newton_schulz(0.05 * p.grad + 0.95 * momentum[name])
                p.copy_(p - lr * config.weight_decay * p - lr * 0.2 * max(p.shape) ** 0.5 * change)
            keep = average_keep(step, len(BATCHES), config)
            average = [keep * a + (1 - keep) * p for a, p in zip(average, draft.parameters(), strict=True)]
    return average


@torch.no_grad()
def require_same_changes(found, wanted, start) -> None:
    """To 3 %: small singular values are amplified 480 times, and so is the rounding in them."""
    for mine, theirs, before in zip(found, wanted, start, strict=True):
        assert float((mine - theirs).norm()) < 0.03 * float((theirs - before).norm())


def test_muon_and_the_average_are_those_of_a_plain_loop():
    draft, target = tiny()
    plain, start = copy.deepcopy(draft), [p.detach().clone() for p in draft.parameters()]
    trainer = live_trainer(draft, target, MUON, lr=LR, num_steps=len(BATCHES))
    for step, rows in enumerate(BATCHES):
        trainer.train_step(rows, step)
    average = learn_plainly(plain, target.model, MUON)

    require_same_changes(draft.parameters(), plain.parameters(), start)
    last = [p.detach().clone() for p in draft.parameters()]
    with trainer.draft_as_served():
        require_same_changes(draft.parameters(), average, start)
        assert not any(torch.equal(a, b) for a, b in zip(draft.parameters(), last, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(draft.parameters(), last, strict=True))


@pytest.mark.parametrize("shape", [(6, 20), (20, 6), (8, 8)])
def test_an_orthogonalised_matrix_keeps_its_singular_vectors_and_has_values_near_one(shape):
    matrices = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0)).double()
    for matrix, found in zip(matrices, orthogonalised(matrices), strict=True):
        u, values, v = torch.linalg.svd(matrix, full_matrices=False)
        seen = torch.diag(u.T @ found @ v.T)
        torch.testing.assert_close(u @ torch.diag(seen) @ v, found, atol=1e-6, rtol=0)
        assert bool((seen[values > 0.1 * values.max()] > 0.6).all())
        assert float(seen.max()) < 1.3


def test_after_a_nan_muon_and_the_average_stay_as_they_were():
    draft, target = tiny()
    trainer = live_trainer(draft, target, MUON, lr=1e-3, num_steps=4)
    trainer.train_step(BATCHES[0], 0)
    before = copy.deepcopy(([*draft.parameters()], trainer.optimiser.moments()))
    poison = draft.norm.weight.register_hook(lambda grad: grad * float("nan"))
    trainer.start_step(BATCHES[1], 1)
    poison.remove()
    trainer.start_step(BATCHES[2], 2)

    assert all(torch.equal(a, b) for a, b in zip(before[0], draft.parameters(), strict=True))
    for name, kept in trainer.optimiser.moments().items():
        assert set(kept) - {"step"} == set(trainer.optimiser.kinds()[name])
        assert all(torch.equal(kept[kind], before[1][name][kind]) for kind in kept), name
