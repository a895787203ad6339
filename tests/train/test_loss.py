"""Each loss against its definition written out, and against autograd in fp64; the fused head against the plain one."""

import pytest
import torch
from torch import Tensor

from eyas.train.head_loss import head_loss
from eyas.train.loss import LOSSES
from eyas.train.teacher import Teacher

M, H, D = 13, 6, 11


def operands(seed: int = 0) -> tuple[Tensor, Tensor, Teacher, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    argmax = torch.randint(-1, D, (M,), generator=generator)
    teacher = Teacher(
        index=torch.empty(0),
        log_probs=random(M, D).mul(2).log_softmax(-1),
        log_mass=-random(M).abs(),
        argmax_ids=argmax,
        argmax_draft=argmax,
    )
    return random(M, H).requires_grad_(), random(D, H).requires_grad_(), teacher, torch.randperm(M, generator=generator)


def written_out(name: str, logits: Tensor, teacher: Teacher, rows: Tensor) -> Tensor:
    p, mass = teacher.log_probs[rows].exp(), teacher.log_mass[rows].exp()
    q = logits.exp() / logits.exp().sum(-1, keepdim=True)
    divergence = (p * (p.log() - q.log())).sum(-1)
    acceptance = torch.where(mass[:, None] * p < q, mass[:, None] * p, q).sum(-1)
    trust = (-3 * acceptance.detach()).exp()
    return {
        "kl": divergence,
        "ce": -q.log().gather(-1, teacher.argmax_draft[rows].clamp(min=0)[:, None])[:, 0],
        "tv": 1 - acceptance,
        "lk": trust * divergence + (1 - trust) * (1 - acceptance),
    }[name]


@pytest.mark.parametrize("name", list(LOSSES))
def test_the_fused_head_gives_the_loss_and_the_gradients_of_the_written_out_one(name, monkeypatch):
    monkeypatch.setattr("eyas.train.head_loss._CHUNK", 5)  # several chunks, the last one shorter
    # fp64 throughout: the losses' own widening to fp32 would hide the comparison
    monkeypatch.setattr(Tensor, "float", lambda tensor: tensor)
    states, weight, teacher, rows = operands()
    fused = head_loss(states, weight, teacher, rows, LOSSES[name])
    counted = teacher.argmax_draft[rows] >= 0
    plain = written_out(name, states @ weight.T, teacher, rows)[counted].sum()

    torch.testing.assert_close(fused.total, plain, rtol=1e-12, atol=1e-12)
    assert int(fused.count) == int(counted.sum()) < M
    got = torch.autograd.grad(fused.total * 1.7, [states, weight])
    wanted = torch.autograd.grad(plain * 1.7, [states, weight])
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


# Not `lk`: its λ is a constant for the gradient, but not for finite differences.
@pytest.mark.parametrize("name", ["kl", "ce", "tv"])
def test_the_gradient_agrees_with_finite_differences(name, monkeypatch):
    monkeypatch.setattr(Tensor, "float", lambda tensor: tensor)
    _, _, teacher, rows = operands(1)
    logits = torch.randn(M, D, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    argmax = teacher.argmax_draft[rows].clamp(min=0)

    def of(x: Tensor) -> Tensor:
        return LOSSES[name](x, teacher.log_probs[rows], teacher.log_mass[rows], argmax)

    assert torch.autograd.gradcheck(of, logits)


def test_a_perfect_draft_has_no_loss():
    _, _, teacher, rows = operands()
    logits = teacher.log_probs[rows]
    for name in ("kl", "tv", "lk"):
        loss = LOSSES[name](logits, logits, torch.zeros(M), teacher.argmax_draft[rows].clamp(min=0))
        assert loss.abs().max() < 1e-6


def test_tv_is_one_minus_the_measured_acceptance_of_sampled_drafts():
    generator = torch.Generator().manual_seed(3)
    target = torch.randn(20, generator=generator, dtype=torch.float64).mul(2).softmax(-1)  # whole vocabulary
    offered = torch.tensor([0, 2, 3, 7, 8, 11, 15, 19])
    logits = torch.randn(1, len(offered), generator=generator, dtype=torch.float64)
    mass = target[offered].sum()
    loss = LOSSES["tv"](
        logits, (target[offered] / mass).log()[None], mass.log()[None], torch.zeros(1, dtype=torch.int64)
    )

    draft = logits[0].softmax(-1)
    drawn = torch.multinomial(draft, 200_000, replacement=True, generator=generator)
    accepted = torch.rand(200_000, generator=generator) < (target[offered][drawn] / draft[drawn]).clamp(max=1)

    assert 1 - float(loss) == pytest.approx(float(accepted.double().mean()), abs=0.005)
