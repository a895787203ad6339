"""The draft's head, the teacher and the loss in one: logits exist for a few positions at a time, of all steps at once.

Logits of all positions and steps would be the largest tensors of training by far ([K, T, D]), the teacher's next
([N, V]). Here a chunk of teacher rows is computed, the K steps that learn from them are scored, gradients of states and
head are taken while the logits exist, and the chunk is dropped. The backward has nothing left to do here.
Shapes: K steps, N teacher rows, H draft hidden, Ht target hidden, D draft vocabulary, V target vocabulary.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.models.target import Target
from eyas.train.config import LossName
from eyas.train.step.compute_weights import ComputeWeight
from eyas.train.step.distributions import DistributionOps, DraftVocabulary

# Largest number of logits, of the target or of the draft's K steps, that exist at a time.
_MOST_LOGITS = {"cuda": 1 << 27, "cpu": 1 << 23}
_MULTIPLE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLoss:
    """Of N teacher rows and K steps.

    Attributes:
        losses: [K, N]; 0 where the weight is 0.
        drafted: [K, N], the draft's argmax as draft ids.
        argmax_draft: [N], the target's argmax as draft ids, -1 where the draft vocabulary does not have it.
        grad_states: [K, N, H] of Σ weight * loss.
    """

    losses: Tensor
    drafted: Tensor
    argmax_draft: Tensor
    grad_states: Tensor


@torch.no_grad()
def head_loss(
    states: Tensor,
    last: Tensor,
    weights: Tensor,
    head: ComputeWeight,
    *,
    target: Target,
    vocabulary: DraftVocabulary,
    loss: LossName,
    ops: DistributionOps,
) -> HeadLoss:
    """Losses and gradients; the head's gradient is added to `head`.

    Args:
        states: [K, N, H] after the draft's final norm.
        last: [N, Ht] after the target's final norm, of the positions learnt from.
        weights: [K, N] of each loss in the sum; 0 where the position has no loss. Rows whose target argmax is outside
            the draft vocabulary have no loss either.
        head: [D, H] of the draft.
    """
    num_steps, num, width = states.shape
    grad_states = torch.empty_like(states)
    losses, drafted, argmax_draft = [], [], []
    chunk = chunk_size(num_steps, target.vocab_size, len(head.value), states.device)
    for begin in range(0, num, chunk):
        part = slice(begin, begin + chunk)
        teacher = ops.reduce(target.logits(last[part]), vocabulary)
        chosen = states[:, part].reshape(-1, width)
        part_weights = torch.where(teacher.argmax_draft >= 0, weights[:, part], 0.0).flatten()
        found = ops.losses(F.linear(chosen, head.value), teacher, part_weights, loss)
        grad_states[:, part] = (found.grad @ head.value).view(num_steps, -1, width)
        head.add_gradient(found.grad, chosen)
        losses.append(found.losses.view(num_steps, -1))
        drafted.append(found.drafted.view(num_steps, -1))
        argmax_draft.append(teacher.argmax_draft)
    return HeadLoss(
        losses=torch.cat(losses, 1),
        drafted=torch.cat(drafted, 1),
        argmax_draft=torch.cat(argmax_draft),
        grad_states=grad_states,
    )


def chunk_size(num_steps: int, vocab_size: int, draft_vocab_size: int, device: torch.device) -> int:
    """Teacher rows handled at once."""
    most = _MOST_LOGITS["cuda" if device.type == "cuda" else "cpu"]
    fits = most // max(vocab_size, num_steps * draft_vocab_size)
    return max(_MULTIPLE, fits // _MULTIPLE * _MULTIPLE)
