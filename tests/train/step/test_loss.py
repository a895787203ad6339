"""Each loss against its definition written out, and against autograd in fp64; the fused head against the plain one."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from eyas.train.step.compute_weights import ComputeWeight
from eyas.train.step.distributions import DraftVocabulary, ReferenceDistributions, Teacher
from eyas.train.step.loss import LOSSES
from eyas.train.step.ttt_loss import HeadLoss, chunk_size, head_loss

K, N, H, D, V = 2, 13, 6, 11, 17
OFFERED = torch.tensor([0, 1, 3, 4, 6, 8, 9, 11, 12, 15, 16])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def vocabulary() -> DraftVocabulary:
    draft_ids = torch.full((V,), -1)
    draft_ids[OFFERED] = torch.arange(D)
    return DraftVocabulary(offered=OFFERED, draft_ids=draft_ids)


def teacher(logits: Tensor) -> Teacher:
    return ReferenceDistributions().reduce(logits, vocabulary())


def written_out(name: str, logits: Tensor, taught: Teacher) -> Tensor:
    p, mass = taught.log_probs.exp(), taught.log_mass.exp()
    q = logits.exp() / logits.exp().sum(-1, keepdim=True)
    divergence = (p * (p.log() - q.log())).sum(-1)
    acceptance = torch.where(mass[:, None] * p < q, mass[:, None] * p, q).sum(-1)
    trust = (-3 * acceptance.detach()).exp()
    return {
        "kl": divergence,
        "ce": -q.log().gather(-1, taught.argmax_draft.clamp(min=0)[:, None])[:, 0],
        "tv": 1 - acceptance,
        "lk": trust * divergence + (1 - trust) * (1 - acceptance),
        "jeffreys": (divergence + (q * (q.log() - p.log())).sum(-1)) / 2,
    }[name]


@pytest.mark.parametrize("name", list(LOSSES))
def test_the_fused_head_gives_the_loss_and_the_gradients_of_the_written_out_one(name, monkeypatch):
    monkeypatch.setattr("eyas.train.step.ttt_loss.chunk_size", lambda *_: 5)  # several chunks, the last one shorter
    # fp64 throughout: the losses' own widening to fp32 would hide the comparison
    monkeypatch.setattr(Tensor, "float", lambda tensor: tensor)
    states, weight = random(K, N, H, seed=1).requires_grad_(), random(D, H, seed=2).requires_grad_()
    last = random(N, V, seed=3).mul(2)
    parts = SimpleNamespace(vocab_size=V, logits=lambda states: states)  # its states are its logits
    weights = torch.rand(K, N, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    weights[0, 3] = 0.0
    head = ComputeWeight([weight], torch.float64)

    found: HeadLoss = head_loss(
        states.detach(), last, weights, head, teacher=parts, vocabulary=vocabulary(), loss=name,
        ops=ReferenceDistributions(),
    )  # fmt: skip
    head.publish()

    taught = teacher(last)
    counted = (taught.argmax_draft >= 0) & (weights != 0)
    plain = torch.stack([written_out(name, states[j] @ weight.T, taught) for j in range(K)])
    assert 0 < int((taught.argmax_draft < 0).sum()) < N, "the case is in the data"
    torch.testing.assert_close(found.losses, torch.where(counted, plain, 0.0).detach(), rtol=1e-12, atol=1e-12)
    assert torch.equal(found.drafted, (states @ weight.T).argmax(-1))
    wanted = torch.autograd.grad((weights * torch.where(counted, plain, 0.0)).sum(), [states, weight])
    torch.testing.assert_close(found.grad_states, wanted[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(weight.grad, wanted[1], rtol=1e-10, atol=1e-12)


# Not `lk`: its λ is a constant for the gradient, but not for finite differences.
@pytest.mark.parametrize("name", ["kl", "ce", "tv", "jeffreys"])
def test_the_gradient_agrees_with_finite_differences(name, monkeypatch):
    monkeypatch.setattr(Tensor, "float", lambda tensor: tensor)
    taught = teacher(random(N, V).mul(2))
    argmax = taught.argmax_draft.clamp(min=0)

    def of(x: Tensor) -> Tensor:
        return LOSSES[name](x, taught.log_probs, taught.log_mass, argmax)

    assert torch.autograd.gradcheck(of, random(N, D, seed=2).requires_grad_())


def test_a_perfect_draft_has_no_loss():
    logits = teacher(random(N, V)).log_probs
    for name in ("kl", "tv", "lk"):
        loss = LOSSES[name](logits, logits, torch.zeros(N), torch.zeros(N, dtype=torch.int64))
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


def test_rows_over_a_vocabulary_are_made_for_as_many_positions_as_fit():
    cpu = torch.device("cpu")
    assert chunk_size(7, 128_256, 32_000, torch.device("cuda")) == 576
    assert chunk_size(7, 128_256, 32_000, cpu) == 64
    assert chunk_size(1, 100, 50, cpu) > 10_000
