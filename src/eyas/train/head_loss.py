"""The draft's head and the loss in one: logits exist for a few positions at a time, in the forward only.

Logits of all positions and steps would be the largest tensors of training by far ([7, T, D]). Here the gradients of
states and head weight are taken chunk by chunk while the logits are there, and only scaled in the backward.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.train.loss import PositionLoss
from eyas.train.teacher import Teacher

_CHUNK = 1024  # positions whose [D] logits exist at once


@dataclass(frozen=True, slots=True)
class HeadLoss:
    """Of the M positions given.

    Attributes:
        total: scalar, the sum of the losses of positions whose target argmax the draft can say; differentiable.
        drafted: [M], the draft's argmax as draft ids.
        count: scalar, number of positions in `total`.
    """

    total: Tensor
    drafted: Tensor
    count: Tensor


def head_loss(states: Tensor, weight: Tensor, teacher: Teacher, rows: Tensor, loss: PositionLoss) -> HeadLoss:
    """Logits, loss and argmax of M positions.

    Args:
        states: [M, H] after the draft's final norm.
        weight: [D, H] of the draft's head.
        teacher: of the batch.
        rows: [M] which of the teacher's N each position learns from.
        loss: per position.
    """
    total, drafted, count = _HeadLoss.apply(states, weight, teacher, rows, loss)  # type: ignore[no-untyped-call]
    return HeadLoss(cast(Tensor, total), cast(Tensor, drafted), cast(Tensor, count))


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, teacher: Teacher, rows: Tensor, loss: PositionLoss
    ) -> tuple[Tensor, Tensor, Tensor]:
        needs_states, needs_weight = ctx.needs_input_grad[:2]
        wide = torch.float64 if states.dtype == torch.float64 else torch.float32
        device = states.device
        # Under autocast the products are taken in its type; sums and the gradient of the weight stay wide.
        narrow = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else states.dtype
        head = weight.to(narrow)
        grad_states = torch.zeros_like(states) if needs_states else None
        grad_weight = torch.zeros_like(weight) if needs_weight else None
        total, count = torch.zeros((), dtype=wide, device=device), torch.zeros((), dtype=torch.int64, device=device)
        drafted = torch.empty(len(states), dtype=torch.int64, device=device)
        for begin in range(0, len(states), _CHUNK):
            part = slice(begin, begin + _CHUNK)
            chunk, chosen = states[part].to(narrow), rows[part]
            logits = F.linear(chunk, head)
            drafted[part] = logits.argmax(-1)
            part_total, grad_logits, num_counted = _chunk_loss(logits, teacher, chosen, loss)
            total += part_total
            count += num_counted
            if grad_states is not None:
                grad_states[part] = (grad_logits @ head).to(states.dtype)
            if grad_weight is not None:
                grad_weight += (grad_logits.t() @ chunk).to(weight.dtype)
        ctx.save_for_backward(grad_states, grad_weight)
        ctx.mark_non_differentiable(drafted, count)
        return total, drafted, count

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        grad_states, grad_weight = ctx.saved_tensors
        return (
            None if grad_states is None else grad_states * grad_total.to(grad_states.dtype),
            None if grad_weight is None else grad_weight * grad_total.to(grad_weight.dtype),
            None,
            None,
            None,
        )


def _chunk_loss(logits: Tensor, teacher: Teacher, rows: Tensor, loss: PositionLoss) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of the losses that count, its gradient by `logits`, and how many count."""
    argmax = teacher.argmax_draft[rows]
    is_counted = argmax >= 0
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        losses = loss(leaf, teacher.log_probs[rows], teacher.log_mass[rows], argmax.clamp(min=0))
        total = torch.where(is_counted, losses, 0.0).sum()
    (grad,) = torch.autograd.grad(total, leaf)
    return total.detach(), grad, is_counted.sum()
