"""Rows of logits over a vocabulary: reduced to a teacher, or turned into loss, argmax and gradient at once.

Two twins: a Triton kernel that reads each row two or three times (GPU), and plain torch, where the gradient is
autograd's of `train.loss`. Shapes: C teacher rows, K steps, V target vocabulary, D draft vocabulary.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from eyas.train.config import LossName
from eyas.train.step.loss import LK_RATE, LOSSES
from eyas.train.step.row_ops import wide_of
from eyas.train.step.teacher import DraftVocabulary, Teacher

_KINDS: dict[LossName, int] = {"kl": 0, "ce": 1, "tv": 2, "lk": 3}  # as in `kernels.distributions`
_BLOCK = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLosses:
    """Of K * C rows.

    Attributes:
        losses: [K * C], fp32 at least; 0 where the weight is 0.
        drafted: [K * C] draft ids.
        grad: [K * C, D], gradient of Σ weight * loss by the logits.
    """

    losses: Tensor
    drafted: Tensor
    grad: Tensor


class DistributionOps(Protocol):
    """What both twins offer."""

    def reduce(self, logits: Tensor, vocabulary: DraftVocabulary) -> Teacher:
        """The teacher of logits [C, V]."""

    def losses(self, logits: Tensor, teacher: Teacher, weights: Tensor, loss: LossName) -> RowLosses:
        """Loss, argmax and gradient of logits [K * C, D]; row r learns from teacher row r % C. Logits may be lost.

        Weights must be 0 where the teacher's `argmax_draft` is -1.
        """


class PlainDistributions:
    """The readable twin."""

    def reduce(self, logits: Tensor, vocabulary: DraftVocabulary) -> Teacher:
        """See `DistributionOps.reduce`."""
        wide = logits.to(wide_of(logits))
        argmax = wide.argmax(-1)
        columns = logits if vocabulary.offered is None else logits[:, vocabulary.offered]
        log_norm = columns.to(wide.dtype).logsumexp(-1)
        return Teacher(
            logits=columns,
            log_norm=log_norm,
            log_mass=log_norm - wide.logsumexp(-1),
            argmax_ids=argmax,
            argmax_draft=vocabulary.draft_ids[argmax],
        )

    def losses(self, logits: Tensor, teacher: Teacher, weights: Tensor, loss: LossName) -> RowLosses:
        """See `DistributionOps.losses`."""
        num_steps = len(logits) // len(teacher.log_mass)
        drafted = logits.argmax(-1)
        log_probs = teacher.log_probs.repeat(num_steps, 1)
        log_mass, argmax = (x.repeat(num_steps) for x in (teacher.log_mass, teacher.argmax_draft))
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            found = LOSSES[loss](leaf, log_probs, log_mass, argmax.clamp(min=0))
            losses = torch.where(weights != 0, found, 0.0)
            (grad,) = torch.autograd.grad((losses * weights).sum(), leaf)
        return RowLosses(losses=losses.detach(), drafted=drafted, grad=grad)


class TritonDistributions:
    """One program a row; the gradient takes the logits' place."""

    def __init__(self) -> None:
        import triton

        from eyas.train.step.kernels import distributions

        self._kernels, self._power = distributions, triton.next_power_of_2

    def reduce(self, logits: Tensor, vocabulary: DraftVocabulary) -> Teacher:
        """See `DistributionOps.reduce`."""
        logits = logits.contiguous()
        (num, width), offered = logits.shape, vocabulary.offered
        columns = logits if offered is None else logits.new_empty(num, len(offered))
        log_norm, log_mass = (torch.empty(num, dtype=torch.float32, device=logits.device) for _ in range(2))
        argmax = torch.empty(num, dtype=torch.int32, device=logits.device)
        self._kernels.teacher_kernel[(num,)](
            logits, argmax if offered is None else offered, columns, argmax, log_norm, log_mass,
            V=width, D=columns.shape[1], HAS_MAP=offered is not None, BLOCK=min(_BLOCK, self._power(width)),
            num_warps=8,
        )  # fmt: skip
        argmax = argmax.long()
        return Teacher(
            logits=columns,
            log_norm=log_norm,
            log_mass=log_mass,
            argmax_ids=argmax,
            argmax_draft=vocabulary.draft_ids[argmax],
        )

    def losses(self, logits: Tensor, teacher: Teacher, weights: Tensor, loss: LossName) -> RowLosses:
        """See `DistributionOps.losses`; the gradient is written over the logits."""
        num, width = logits.shape
        losses = torch.empty(num, dtype=torch.float32, device=logits.device)
        drafted = torch.empty(num, dtype=torch.int32, device=logits.device)
        self._kernels.loss_kernel[(num,)](
            logits, teacher.logits, teacher.log_norm, teacher.log_mass, teacher.argmax_draft, weights, losses, drafted,
            len(teacher.log_mass), LK_RATE, D=width, LOSS=_KINDS[loss], BLOCK=min(_BLOCK, self._power(width)),
            num_warps=8,
        )  # fmt: skip
        return RowLosses(losses=losses, drafted=drafted.long(), grad=logits)


def distributions_for(device: torch.device, dtype: torch.dtype) -> DistributionOps:
    """The kernels where they can run, else the plain twin."""
    if device.type == "cuda" and dtype in (torch.float32, torch.bfloat16, torch.float16):
        return TritonDistributions()
    return PlainDistributions()
