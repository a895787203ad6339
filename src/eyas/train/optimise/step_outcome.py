"""What an optimiser step measured: first as tensors on the device, later as numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from eyas.train.optimise.optimiser import diverged
from eyas.train.step.ttt_loss import StepCounts

_COUNTS = tuple(field.name for field in fields(StepCounts))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What one optimiser step measured, before its update.

    Attributes:
        loss: the weighted sum over unrolled steps.
        counts: per unrolled step.
        grad_norm: before clipping.
        lr: used by the update.
    """

    loss: float
    counts: StepCounts
    grad_norm: float
    lr: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingStep:
    """A step that was started; reading it waits for the device.

    Attributes:
        step: 0-based.
        figures: [1 + 7K] float64, `pack_figures` of loss and counts, summed over micro-batches and ranks.
        norms: [P] norm of each trained tensor's gradient.
        names: P names.
        lr: used by the update.
        padding_share: share of padding among the positions that this rank computed.
    """

    step: int
    figures: Tensor
    norms: Tensor
    names: Sequence[str]
    lr: float
    padding_share: float


def pack_figures(loss: Tensor, counts: StepCounts) -> Tensor:
    """[1 + 7K] float64: one tensor to sum over ranks and to fetch. Counts stay exact."""
    return torch.cat([loss.double().reshape(1), *(getattr(counts, name).double() for name in _COUNTS)])


def read_steps(pending: Sequence[PendingStep]) -> tuple[list[StepOutcome], Exception | None]:
    """The outcomes of steps in order, fetched in one transfer.

    Returns:
        The outcomes up to the first step that is not finite, and the error that names its tensors (None if all are
        finite).
    """
    if not pending:
        return [], None
    fetched = torch.cat([torch.cat([p.figures, p.norms.double()]) for p in pending]).cpu()
    outcomes: list[StepOutcome] = []
    for step, values in zip(
        pending, torch.split(fetched, [len(p.figures) + len(p.norms) for p in pending]), strict=True
    ):
        figures, norms = torch.split(values, [len(step.figures), len(step.norms)])
        bad = _not_finite(figures, norms, step.names)
        if bad is not None:
            return outcomes, diverged(bad, step.step)
        loss, *columns = torch.split(figures, [1] + [(len(figures) - 1) // len(_COUNTS)] * len(_COUNTS))
        counts = {
            name: column if name == "loss" else column.long() for name, column in zip(_COUNTS, columns, strict=True)
        }
        outcomes.append(
            StepOutcome(loss=float(loss), counts=StepCounts(**counts), grad_norm=float(norms.norm()), lr=step.lr)
        )
    return outcomes, None


def _not_finite(figures: Tensor, norms: Tensor, names: Sequence[str]) -> str | None:
    """What to name in the error; None if all is finite."""
    bad = [name for name, is_fine in zip(names, torch.isfinite(norms).tolist(), strict=True) if not is_fine]
    if not bool(torch.isfinite(figures[0])):
        losses = figures[1 : 1 + (len(figures) - 1) // len(_COUNTS)]
        steps = [str(j) for j, is_fine in enumerate(torch.isfinite(losses).tolist()) if not is_fine]
        return f"the loss of unrolled step{'s' if len(steps) > 1 else ''} {', '.join(steps)}" if steps else "the loss"
    if bad:
        return f"the gradient of {', '.join(bad[:4])}{' and others' if len(bad) > 4 else ''}"
    return None
