"""One optimiser step of training: target forward, teacher, unrolled draft, backward, update. Reads no files."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from eyas.data.text.tokenise import TokenRow
from eyas.models.draft import Eagle3Draft
from eyas.models.target import Target
from eyas.train.config import TrainConfig
from eyas.train.optimise.data_wait import DataWait
from eyas.train.optimise.optimiser import GuardedAdamW, lr_share
from eyas.train.optimise.ranks import SOLO, Ranks
from eyas.train.optimise.sharding import Shards
from eyas.train.optimise.step_outcome import PendingStep, StepOutcome, pack_figures, read_steps
from eyas.train.rows.packing import Packed, count_targets, even_micro_batches, micro_batches, pack
from eyas.train.step.distributions import DraftVocabulary, distributions_for
from eyas.train.step.metrics import StepCounts
from eyas.train.step.packed_target import packed_target
from eyas.train.step.reference_check import require_reference
from eyas.train.step.ttt_loss import PhaseClock, TttObjective, no_clock, no_counts, ttt_backward
from eyas.train.step.unroll import make_unroll


class Trainer:
    """A draft, its target and its optimiser.

    Args:
        draft: fp32, on the target's device; all its parameters that require gradients are trained.
        target: frozen.
        config: as given.
        lr: peak learning rate.
        num_steps: of the whole run, for the schedule.
        ranks: the processes that train together; each gets the whole batch and takes its share.
        shards: of the draft, where the ranks divide its weights; None where each has all of them.
        clock: entered around each phase of a step.

    Attributes:
        data_wait: how long the device waited for rows; the caller adds the time to fetch them.
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
        shards: Shards | None = None,
        clock: PhaseClock = no_clock,
    ) -> None:
        assert draft.spec.aux_boundaries is not None, "a draft in training has aux boundaries"
        self.draft, self.target, self.config, self.ranks, self.shards = draft, target, config, ranks, shards
        self._lr, self._num_steps, self._clock = lr, num_steps, clock
        self._aux_boundaries = draft.spec.aux_boundaries
        named = draft.named_parameters() if shards is None else shards.local_parameters()
        self.optimiser = GuardedAdamW(named, config, lr, SOLO if shards is None else ranks)
        # With a bf16 target the draft computes in bf16 too; its fp32 weights are cast once a step.
        half = target.parts.embedding.dtype
        dtype = half if half == torch.bfloat16 else draft.dtype
        self._micro_batch = config.micro_batch_on(target.device.type)
        is_fused = config.unroll == "fused"
        self._states = packed_target(target, self._micro_batch, is_fused=is_fused)
        with self.whole_draft():
            self._unroll = make_unroll(draft, config.ttt_steps, dtype, is_fused=is_fused)
        self._pads = self._states.pads or self._unroll.pads
        self._vocabulary = DraftVocabulary.of(draft, target.device)
        self._distributions = distributions_for(target.device, dtype, is_fused=is_fused)
        self.data_wait = DataWait.of(target.device)

    def whole_draft(self) -> AbstractContextManager[None]:
        """Inside, the draft's parameters are whole. With shards, all ranks enter together."""
        return nullcontext() if self.shards is None else self.shards.whole()

    def draft_to_write(self) -> Eagle3Draft:
        """The draft without shards; inside `whole_draft`."""
        return self.draft if self.shards is None else self.shards.plain_copy()

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

        After a step that is not finite, later ones leave the weights as they are; `read_steps` reports it.
        """
        figures, padding_share = self._gradients(rows)
        lr = self._lr * lr_share(step, self._num_steps, self.config)
        with self._clock("optimiser"):
            norms = self.optimiser.update(lr, figures[0])
        return PendingStep(
            step=step, figures=figures, norms=norms, names=self.optimiser.names, lr=lr, padding_share=padding_share
        )

    def require_reference(self, row: TokenRow) -> float | None:
        """Compare the fused step with the modules; see `step.reference_check`. With shards, all ranks call it."""
        if self.config.unroll == "modules":
            return None
        with self.whole_draft():
            return require_reference(self.draft, self.target, self._states, row, self.config.ttt_steps)

    def time_step(self, rows: Sequence[TokenRow]) -> float:
        """Seconds of a step on `rows` without its update; the weights stay as they are. All ranks call it together."""
        begin = time.monotonic()
        self._gradients(rows)
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)
        return time.monotonic() - begin

    def _gradients(self, rows: Sequence[TokenRow]) -> tuple[Tensor, float]:
        """Gradients of the batch, summed over micro-batches and ranks; its figures and its share of padding."""
        config = self.config
        with self.data_wait():
            objective = TttObjective.of(config.loss, config.step_decay, count_targets(rows, config.ttt_steps))
            mine = [rows[i] for i in self.ranks.share([len(row.token_ids) for row in rows])]
            parts = (even_micro_batches if self._pads else micro_batches)(mine, self._micro_batch)
        num_tokens = num_positions = 0
        self.optimiser.inner.zero_grad(set_to_none=True)
        figures = torch.zeros(1 + 7 * config.ttt_steps, dtype=torch.float64, device=self.target.device)
        with self.whole_draft():
            self._unroll.refresh()
            for part in parts:
                with self.data_wait():
                    packed = pack(part, config.ttt_steps, self.target.device)
                num_tokens += packed.num_tokens
                num_positions += packed.num_padded if self._pads else packed.length
                figures += pack_figures(*self._accumulate(packed, objective))
            self._unroll.publish()
            if self.shards is not None:
                self.shards.reduce_gradients()
        self.ranks.sum_in_place([figures] if self.shards else [*self.optimiser.gradients(), figures])
        return figures, 1 - num_tokens / num_positions if num_positions else 0.0

    def _accumulate(self, packed: Packed, objective: TttObjective) -> tuple[Tensor, StepCounts]:
        """Add one micro-batch's gradients; loss and counts stay on the device."""
        if len(packed.teachers) == 0:
            return no_counts(self.config.ttt_steps, self.target.device)
        with self._clock("target"):
            states = self._states(packed, self._aux_boundaries)
        return ttt_backward(
            self._unroll,
            packed,
            states,
            objective,
            target=self.target,
            vocabulary=self._vocabulary,
            ops=self._distributions,
            clock=self._clock,
        )
