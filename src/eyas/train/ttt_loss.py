"""Training-time test on a batch: the unrolled steps, their weighted loss, their counts (design §5).

Step j at index t reads token t+1+j and learns the target's distribution at t+1+j, where token t+2+j is supervised.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.models.draft import Eagle3Draft
from eyas.train.head_loss import head_loss
from eyas.train.loss import PositionLoss
from eyas.train.metrics import Chains, StepCounts
from eyas.train.teacher import Teacher


@dataclass(frozen=True, slots=True, kw_only=True)
class TttObjective:
    """How the steps' losses become one number: Σ_j decay^j · (sum of step j's losses) / denominators[j].

    Attributes:
        loss: per position.
        step_decay: weight of step j is step_decay ** j.
        denominators: K numbers. The trainer gives the supervised targets of step j in the whole optimiser step, known
            from the data before any forward pass, so that micro-batches and ranks add up to the same number.
    """

    loss: PositionLoss
    step_decay: float
    denominators: tuple[float, ...]


def denominators(is_supervised: Tensor, num_steps: int) -> Tensor:
    """Targets of each step in [B, T] flags: entry j counts supervised tokens at indices ≥ 2 + j. [K] int64."""
    return torch.stack([is_supervised[:, 2 + j :].sum() for j in range(num_steps)])


def ttt_loss(
    draft: Eagle3Draft, input_ids: Tensor, aux_states: Tensor, teacher: Teacher, objective: TttObjective
) -> tuple[Tensor, StepCounts]:
    """The batch's share of the objective (differentiable scalar) and its counts.

    Args:
        input_ids: [B, T]; rows padded on the right.
        aux_states: [B, T, A * Ht] in `fc` order.
        teacher: of the same batch.
    """
    num_rows, num = input_ids.shape
    num_steps = len(objective.denominators)
    chains = Chains((num_rows, num), input_ids.device)
    total = torch.zeros((), device=input_ids.device)
    counts: list[StepCounts] = []
    for j, step in enumerate(draft.ttt_steps(input_ids, aux_states, num_steps)):
        index = torch.full_like(teacher.index, -1)
        index[:, : max(0, num - 1 - j)] = teacher.index[:, 1 + j :]
        is_target = index >= 0
        rows = index[is_target]
        found = head_loss(step.normed[is_target], draft.head_weight, teacher, rows, objective.loss)
        is_right = torch.zeros_like(is_target)
        # An argmax outside the draft vocabulary is -1 and equals no draft id.
        is_right[is_target] = found.drafted == teacher.argmax_draft[rows]
        total = total + objective.step_decay**j * found.total / max(1.0, objective.denominators[j])
        num_chains, num_reached, num_joint = chains.count(is_target, is_right)
        counts.append(
            StepCounts(
                loss=found.total.detach(),
                num_targets=is_target.sum(),
                num_in_vocab=found.count,
                num_right=is_right.sum(),
                num_chains=num_chains,
                num_reached=num_reached,
                num_joint=num_joint,
            )
        )
    return total, StepCounts.stack(counts)
