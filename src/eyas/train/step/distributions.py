"""Rows of logits over a vocabulary: reduced to a teacher, or turned into loss, argmax and gradient at once.

Twins: a Triton kernel that reads each row two or three times (GPU), and the reference in plain torch, where the
gradient is autograd's of `step.loss`. Shapes: C teacher rows, K steps, V target vocabulary, D draft vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.models.draft import Eagle3Draft
from eyas.train.config import LossName
from eyas.train.step.loss import LK_RATE, LOSSES
from eyas.train.step.row_ops import wide_of

_KINDS: dict[LossName, int] = {"kl": 0, "ce": 1, "tv": 2, "lk": 3, "jeffreys": 4}  # as in `kernels.distributions`
_BLOCK = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftVocabulary:
    """The draft vocabulary on the device.

    Attributes:
        offered: [D] int64 target ids; None when it is the whole vocabulary.
        draft_ids: [V] int64, draft id of each target id, -1 where the draft vocabulary does not have it.
    """

    offered: Tensor | None
    draft_ids: Tensor

    @classmethod
    def of(cls, draft: Eagle3Draft, device: torch.device) -> "DraftVocabulary":
        """That of `draft`."""
        size = draft.spec.draft_vocab_size
        index = torch.arange(size, device=device)
        if not draft.spec.has_vocab_map:
            return cls(offered=None, draft_ids=index)
        offered = draft.to_target_ids(index)
        draft_ids = torch.full((draft.spec.vocab_size,), -1, device=device)
        draft_ids[offered] = index
        return cls(offered=offered, draft_ids=draft_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """The target's distributions at C positions.

    Attributes:
        logits: [C, D], columns of the draft vocabulary alone.
        log_norm: [C] log-sum-exp of `logits`: log p = logits - log_norm.
        log_mass: [C], log of the probability that the target gives to the draft vocabulary as a whole.
        argmax_ids: [C] target ids, over the whole vocabulary.
        argmax_draft: [C] the same as draft ids, -1 where the draft vocabulary does not have it.
    """

    logits: Tensor
    log_norm: Tensor
    log_mass: Tensor
    argmax_ids: Tensor
    argmax_draft: Tensor

    @property
    def log_probs(self) -> Tensor:
        """[C, D], log-softmax over the draft vocabulary alone, fp32 at least."""
        return self.logits.to(self.log_norm.dtype) - self.log_norm.unsqueeze(-1)


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


class ReferenceDistributions:
    """The reference twin.

    Args:
        temperature: of the teacher: its logits are divided by it.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        self._temperature = temperature

    def reduce(self, logits: Tensor, vocabulary: DraftVocabulary) -> Teacher:
        """The teacher of logits [C, V]."""
        logits = _tempered(logits, self._temperature)
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
        """Loss, argmax and gradient of logits [K * C, D]; row r learns from teacher row r % C. Logits may be lost.

        Weights must be 0 where the teacher's `argmax_draft` is -1.
        """
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

    def __init__(self, temperature: float = 1.0) -> None:
        import triton

        from eyas.train.step.kernels import distributions

        self._kernels, self._power, self._temperature = distributions, triton.next_power_of_2, temperature

    def reduce(self, logits: Tensor, vocabulary: DraftVocabulary) -> Teacher:
        """See `ReferenceDistributions.reduce`."""
        logits = _tempered(logits, self._temperature).contiguous()
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
        """See `ReferenceDistributions.losses`; the gradient is written over the logits. A loss without a kernel is the
        reference's."""
        if loss not in _KINDS:
            return ReferenceDistributions().losses(logits, teacher, weights, loss)
        num, width = logits.shape
        losses = torch.empty(num, dtype=torch.float32, device=logits.device)
        drafted = torch.empty(num, dtype=torch.int32, device=logits.device)
        self._kernels.loss_kernel[(num,)](
            logits, teacher.logits, teacher.log_norm, teacher.log_mass, teacher.argmax_draft, weights, losses, drafted,
            len(teacher.log_mass), LK_RATE, D=width, LOSS=_KINDS[loss], BLOCK=min(_BLOCK, self._power(width)),
            num_warps=8,
        )  # fmt: skip
        return RowLosses(losses=losses, drafted=drafted.long(), grad=logits)


DistributionOps = ReferenceDistributions | TritonDistributions


def distributions_for(
    device: torch.device, dtype: torch.dtype, *, is_fused: bool = True, temperature: float = 1.0
) -> DistributionOps:
    """The kernels where they are wanted and can run, else the reference twin; with this temperature of the teacher."""
    if is_fused and device.type == "cuda" and dtype in (torch.float32, torch.bfloat16, torch.float16):
        return TritonDistributions(temperature)
    return ReferenceDistributions(temperature)


def _tempered(logits: Tensor, temperature: float) -> Tensor:
    return logits if temperature == 1.0 else logits / temperature
