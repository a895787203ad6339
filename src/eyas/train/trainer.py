"""One optimiser step of training: target forward, teacher, unrolled draft, backward, update. Knows no files."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eyas.data.tokenise import TokenRow
from eyas.models.draft import Eagle3Draft
from eyas.models.target import Target
from eyas.train.config import TrainConfig
from eyas.train.loss import LOSSES
from eyas.train.metrics import StepCounts
from eyas.train.optimiser import GuardedAdamW
from eyas.train.ranks import SOLO, Ranks
from eyas.train.schedule import lr_share
from eyas.train.step_outcome import PendingStep, StepOutcome, pack_figures, read_steps
from eyas.train.teacher import make_teacher
from eyas.train.ttt_loss import TttObjective, ttt_loss


class Trainer:
    """A draft, its target and its optimiser.

    Args:
        draft: fp32, on the target's device; all its parameters that require gradients are trained.
        target: frozen.
        config: as given.
        lr: peak learning rate.
        num_steps: of the whole run, for the schedule.
        ranks: the processes that train together; each has the whole batch and takes its share of it.
    """

    def __init__(
        self,
        draft: Eagle3Draft,
        target: Target,
        config: TrainConfig,
        *,
        lr: float,
        num_steps: int,
        ranks: Ranks = SOLO,
    ) -> None:
        assert draft.spec.aux_boundaries is not None, "a draft in training knows its boundaries"
        self.draft, self.target, self.config, self.ranks = draft, target, config, ranks
        self._lr, self._num_steps = lr, num_steps
        self._is_half = target.parts.embedding.dtype == torch.bfloat16
        self._aux_boundaries = draft.spec.aux_boundaries
        self.optimiser = GuardedAdamW(draft, config, lr)

    def train_step(self, rows: Sequence[TokenRow], step: int) -> StepOutcome:
        """Learn from `rows` and wait for the outcome; `step` is 0-based.

        Raises:
            TrainingDiverged: loss or gradient is not finite; the weights are as they were.
        """
        outcomes, error = read_steps([self.start_step(rows, step)])
        if error is not None:
            raise error
        return outcomes[0]

    def start_step(self, rows: Sequence[TokenRow], step: int) -> PendingStep:
        """Learn from `rows` (the batch of all ranks) without waiting for the device.

        Once a step was not finite, this and later ones leave the weights as they are; reading it tells.
        """
        objective = TttObjective(
            loss=LOSSES[self.config.loss],
            step_decay=self.config.step_decay,
            denominators=target_counts(rows, self.config.ttt_steps),
        )
        mine = [rows[i] for i in self.ranks.share([len(row.token_ids) for row in rows])]
        parts = [padded(part, self.target.device) for part in micro_batches(mine, self.config.micro_batch_tokens)]
        self.optimiser.inner.zero_grad(set_to_none=True)
        figures = torch.zeros(1 + 7 * self.config.ttt_steps, dtype=torch.float64, device=self.target.device)
        for ids, flags in parts:
            figures += pack_figures(*self._accumulate(ids, flags, objective))
        self.ranks.sum_in_place([*self.optimiser.gradients(), figures])
        lr = self._lr * lr_share(step, self._num_steps, self.config)
        norms = self.optimiser.update(lr, figures[0])
        return PendingStep(step=step, figures=figures, norms=norms, names=self.optimiser.names, lr=lr)

    def _accumulate(self, ids: Tensor, flags: Tensor, objective: TttObjective) -> tuple[Tensor, StepCounts]:
        """Add one micro-batch's gradients."""
        states = self.target.forward(ids, self._aux_boundaries)
        with torch.no_grad():
            teacher = make_teacher(self.target, states.last, flags, self.draft)
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=self._is_half):
            total, counts = ttt_loss(self.draft, ids, states.aux, teacher, objective)
        torch.autograd.backward(total)
        return total.detach(), counts


def target_counts(rows: Sequence[TokenRow], num_steps: int) -> tuple[float, ...]:
    """Supervised targets of each unrolled step in `rows`: entry j counts the supervised tokens at indices ≥ 2 + j."""
    return tuple(float(sum(sum(row.is_supervised[2 + j :]) for row in rows)) for j in range(num_steps))


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
