"""One optimiser step of training: target forward, teacher, unrolled draft, backward, update. Knows no files."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.data.tokenise import TokenRow
from eyas.models.draft import Eagle3Draft
from eyas.models.target import Target
from eyas.train.config import TrainConfig
from eyas.train.loss import LOSSES
from eyas.train.metrics import StepCounts
from eyas.train.optimiser import clip_gradients, make_optimiser, require_finite
from eyas.train.schedule import lr_share
from eyas.train.teacher import make_teacher
from eyas.train.ttt_loss import TttObjective, denominators, ttt_loss


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


class Trainer:
    """A draft, its target and its optimiser.

    Args:
        draft: fp32, on the target's device; all its parameters that require gradients are trained.
        target: frozen.
        config: as given.
        lr: peak learning rate.
        num_steps: of the whole run, for the schedule.
    """

    def __init__(self, draft: Eagle3Draft, target: Target, config: TrainConfig, *, lr: float, num_steps: int) -> None:
        assert draft.spec.aux_boundaries is not None, "a draft in training knows its boundaries"
        self.draft, self.target, self.config = draft, target, config
        self._lr, self._num_steps = lr, num_steps
        self._is_half = target.parts.embedding.dtype == torch.bfloat16
        self._aux_boundaries = draft.spec.aux_boundaries
        self.optimiser = make_optimiser(draft, config, lr)

    def train_step(self, rows: Sequence[TokenRow], step: int) -> StepOutcome:
        """Learn from `rows`; `step` is 0-based.

        Raises:
            TrainingDiverged: loss or gradient is not finite; the weights are as they were.
        """
        parts = [padded(part, self.target.device) for part in micro_batches(rows, self.config.micro_batch_tokens)]
        num_targets = torch.stack([denominators(flags, self.config.ttt_steps) for _, flags in parts]).sum(0)
        objective = TttObjective(
            loss=LOSSES[self.config.loss],
            step_decay=self.config.step_decay,
            denominators=tuple(float(n) for n in num_targets.tolist()),
        )
        self.optimiser.zero_grad(set_to_none=True)
        outcomes = [self._accumulate(ids, flags, objective) for ids, flags in parts]
        loss = require_finite(torch.stack([total for total, _ in outcomes]).sum(), step)
        counts = outcomes[0][1]
        for _, more in outcomes[1:]:
            counts = counts + more
        grad_norm = clip_gradients(self.draft.named_parameters(), self.config.grad_clip, step)
        lr = self._lr * lr_share(step, self._num_steps, self.config)
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        self.optimiser.step()
        return StepOutcome(loss=loss, counts=counts, grad_norm=grad_norm, lr=lr)

    def _accumulate(self, ids: Tensor, flags: Tensor, objective: TttObjective) -> tuple[Tensor, StepCounts]:
        """Add one micro-batch's gradients."""
        states = self.target.forward(ids, self._aux_boundaries)
        with torch.no_grad():
            teacher = make_teacher(self.target, states.last, flags, self.draft)
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=self._is_half):
            total, counts = ttt_loss(self.draft, ids, states.aux, teacher, objective)
        torch.autograd.backward(total)
        return total.detach(), counts


def micro_batches(rows: Sequence[TokenRow], most_tokens: int) -> list[list[TokenRow]]:
    """`rows` in runs of at most `most_tokens` tokens, padding counted; a longer row goes alone."""
    parts: list[list[TokenRow]] = []
    for row in rows:
        longest = max((len(r.token_ids) for r in (parts[-1] if parts else [])), default=0)
        if parts and max(longest, len(row.token_ids)) * (len(parts[-1]) + 1) <= most_tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts


def padded(rows: Sequence[TokenRow], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids [B, T] int64 and supervision [B, T] bool; padded on the right with id 0, unsupervised."""
    longest = max(len(row.token_ids) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    flags = torch.zeros(len(rows), longest, dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(row.token_ids)] = torch.tensor(row.token_ids)
        flags[i, : len(row.token_ids)] = torch.tensor(row.is_supervised)
    return ids.to(device), flags.to(device)
