"""Training-time test on a micro-batch: the unrolled steps, their weighted loss, their counts.

Step j at index t reads token t+1+j and learns the target's distribution at t+1+j, where token t+2+j is supervised.
Shapes: K steps, N teacher rows, T positions.
Source: docs/training.md, "The objective"; EAGLE-3, arXiv:2503.01840.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from eyas.models.target import Target
from eyas.train.config import LossName
from eyas.train.rows.packing import Packed
from eyas.train.step.distributions import DistributionOps, DraftVocabulary
from eyas.train.step.head_loss import HeadLoss, head_loss
from eyas.train.step.metrics import StepCounts, count_chains
from eyas.train.step.packed_target import PackedStates
from eyas.train.step.unroll import Unroll

# Called with the name of a phase; its context manager is open during the phase.
PhaseClock = Callable[[str], AbstractContextManager[None]]


def no_clock(phase: str) -> AbstractContextManager[None]:
    """Times nothing."""
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class TttObjective:
    """How the steps' losses become one number: Σ_j decay^j · (sum of step j's losses) / denominators[j].

    Attributes:
        loss: per position.
        weights: K numbers, decay^j / denominators[j]. The denominators are the supervised targets of step j in the
            whole optimiser step, known from the data before any forward pass, so that micro-batches and ranks add up
            to the same number.
    """

    loss: LossName
    weights: tuple[float, ...]

    @classmethod
    def of(cls, loss: LossName, step_decay: float, denominators: list[int]) -> "TttObjective":
        """With weights from the decay and the targets of each step."""
        return cls(loss=loss, weights=tuple(step_decay**j / max(1, n) for j, n in enumerate(denominators)))

    def weights_on(self, device: torch.device) -> Tensor:
        """[K] fp32; the host does not wait for the copy."""
        return torch.tensor(self.weights, dtype=torch.float32).to(device, non_blocking=True)


def ttt_backward(
    unroll: Unroll,
    packed: Packed,
    states: PackedStates,
    loss: LossName,
    step_weights: Tensor,
    *,
    target: Target,
    vocabulary: DraftVocabulary,
    ops: DistributionOps,
    clock: PhaseClock = no_clock,
) -> tuple[Tensor, StepCounts]:
    """Add the micro-batch's gradients; gives its share of the objective (a scalar) and its counts.

    Args:
        step_weights: [K] fp32, `TttObjective.weights`.
    """
    with clock("draft forward"):
        picked = unroll.states(packed, states.aux)
    weights = torch.where(packed.is_target, step_weights[:, None], 0.0)
    with clock("teacher, head, loss"):
        found = head_loss(
            picked.detach(),
            states.last.index_select(0, packed.teachers),
            weights,
            unroll.head,
            target=target,
            vocabulary=vocabulary,
            loss=loss,
            ops=ops,
        )
    if picked.requires_grad:
        with clock("draft backward"):
            torch.autograd.backward(picked, found.grad_states)
    total = (found.losses * weights).sum()
    return total, _counts(found, packed)


def no_counts(num_steps: int, device: torch.device) -> tuple[Tensor, StepCounts]:
    """Loss and counts of a micro-batch without a target."""
    none = {field.name: torch.zeros(num_steps, dtype=torch.int64, device=device) for field in fields(StepCounts)}
    return torch.zeros((), device=device), StepCounts(**none)


def _counts(found: HeadLoss, packed: Packed) -> StepCounts:
    """[K] each, still on the device."""
    num_steps = len(packed.picks)
    is_known = packed.is_target & (found.argmax_draft >= 0)
    is_right = is_known & (found.drafted == found.argmax_draft)
    # By the position that learns, not the one learnt from; the padding takes what does not count.
    shape = (num_steps, packed.length)
    device = is_known.device
    is_target_at = torch.zeros(shape, dtype=torch.bool, device=device).scatter_(1, packed.picks, packed.is_target)
    is_right_at = torch.zeros(shape, dtype=torch.bool, device=device).scatter_(1, packed.picks, is_right)
    num_chains, num_reached, num_joint = count_chains(is_target_at, is_right_at)
    return StepCounts(
        loss=found.losses.sum(1),
        num_targets=packed.is_target.sum(1),
        num_in_vocab=is_known.sum(1),
        num_right=is_right.sum(1),
        num_chains=num_chains,
        num_reached=num_reached,
        num_joint=num_joint,
    )
