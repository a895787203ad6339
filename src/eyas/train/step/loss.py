"""Losses of a draft against its teacher, each per position. Sums, weights and denominators are the caller's.

p is the target's distribution, q the draft's, both over the draft vocabulary; M is the target's probability of that
vocabulary as a whole. Acceptance of a sampled draft is Σ min(M·p, q) (speculative sampling, arXiv:2211.17192).
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.train.config import LossName

# How fast `lk` moves from KL to acceptance as the draft gets better.
LK_RATE = 3.0

# (draft logits [M, D], teacher log-probabilities [M, D], log mass [M], teacher argmax as draft id [M]) -> [M]
PositionLoss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def kl(logits: Tensor, log_probs: Tensor, log_mass: Tensor, argmax: Tensor) -> Tensor:
    """KL(p ‖ q), in nats; its gradient is that of EAGLE-3's soft cross entropy, and it is 0 for a perfect draft."""
    return F.kl_div(F.log_softmax(logits.float(), -1), log_probs, reduction="none", log_target=True).sum(-1)


def ce(logits: Tensor, log_probs: Tensor, log_mass: Tensor, argmax: Tensor) -> Tensor:
    """Cross-entropy with the target's argmax, in nats."""
    return F.cross_entropy(logits.float(), argmax, reduction="none")


def tv(logits: Tensor, log_probs: Tensor, log_mass: Tensor, argmax: Tensor) -> Tensor:
    """1 - acceptance of a sampled draft: the total variation distance when the vocabulary is whole."""
    return 1.0 - _acceptance(logits, log_probs, log_mass)


def lk(logits: Tensor, log_probs: Tensor, log_mass: Tensor, argmax: Tensor) -> Tensor:
    """λ·KL + (1 - λ)·(1 - acceptance) with λ = exp(-3 · acceptance): KL while far off, acceptance itself when near.

    λ is not differentiated. Far from the target the gradient of acceptance alone vanishes.
    """
    acceptance = _acceptance(logits, log_probs, log_mass)
    weight = (-LK_RATE * acceptance.detach()).exp()
    return weight * kl(logits, log_probs, log_mass, argmax) + (1.0 - weight) * (1.0 - acceptance)


def jeffreys(logits: Tensor, log_probs: Tensor, log_mass: Tensor, argmax: Tensor) -> Tensor:
    """Half of KL(p ‖ q) + KL(q ‖ p): what only the draft would say costs as much as what only the target would."""
    log_q = F.log_softmax(logits.float(), -1)
    return 0.5 * ((log_q.exp() - log_probs.exp()) * (log_q - log_probs)).sum(-1)


LOSSES: Mapping[LossName, PositionLoss] = {"kl": kl, "ce": ce, "tv": tv, "lk": lk, "jeffreys": jeffreys}


def _acceptance(logits: Tensor, log_probs: Tensor, log_mass: Tensor) -> Tensor:
    p = (log_probs + log_mass[:, None]).exp()
    return torch.minimum(p, logits.float().softmax(-1)).sum(-1)
