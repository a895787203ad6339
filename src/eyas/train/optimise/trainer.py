"""One optimiser step of training: target forward, teacher, unrolled draft, backward, update. Reads no files."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from eyas.data.text.tokenise import TokenRow
from eyas.models.draft import Eagle3Draft
from eyas.train.config import TrainConfig
from eyas.train.optimise.optimiser import GuardedOptimiser
from eyas.train.optimise.ranks import SOLO, Ranks
from eyas.train.optimise.schedule import average_keep, lr_share
from eyas.train.optimise.sharding import Shards
from eyas.train.optimise.step_outcome import PendingStep, StepOutcome, pack_figures, read_steps
from eyas.train.optimise.teaching import Teaching
from eyas.train.rows.packing import Packed, count_targets, even_micro_batches, least_shape, micro_batches, pack
from eyas.train.step.captured import CapturedMicroBatches, Recorder, why_not_captured
from eyas.train.step.distributions import DraftVocabulary, distributions_for
from eyas.train.step.reference_check import require_reference
from eyas.train.step.ttt_loss import PhaseClock, TttObjective, no_clock, no_counts, ttt_backward
from eyas.train.step.unroll import FusedUnroll, make_unroll


class DataWait:
    """Sums up the idle time; never waits for the device.

    Args:
        is_idle: whether the device has finished its work; asked after each piece of work on data. A device that is
            still busy has not waited. One that is idle has waited at most for all of it, and that is counted.
        clock: seconds.
    """

    def __init__(self, is_idle: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._is_idle, self._clock = is_idle, clock
        self._seconds = 0.0

    @classmethod
    def of(cls, device: torch.device) -> "DataWait":
        """An idle clock for the work this thread gives to `device`; a CPU counts as idle throughout."""
        if device.type != "cuda":
            return cls(lambda: True)
        return cls(lambda: torch.cuda.current_stream(device).query())

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Around work on data."""
        begin = self._clock()
        yield
        if self._is_idle():
            self._seconds += self._clock() - begin

    def take(self) -> float:
        """Seconds since the last call."""
        taken, self._seconds = self._seconds, 0.0
        return taken


class Trainer:
    """A draft, what it learns from, and its optimiser.

    Args:
        draft: fp32, on the teacher's device; all its parameters that require gradients are trained.
        teaching: the target's frozen parts, and its states over the rows.
        config: as given.
        lr: peak learning rate.
        num_steps: of the whole run, for the schedule.
        ranks: the processes that train together; each gets the whole batch and takes its share.
        shards: of the draft, where the ranks divide its weights; None where each has all of them.
        clock: entered around each phase of a step.
        record: records a micro-batch's work, where `why_not_captured` allows it; None runs each one without a graph.

    Attributes:
        device: where it computes.
        data_wait: how long the device waited for rows; the caller adds the time to fetch them.
    """

    def __init__(
        self,
        draft: Eagle3Draft,
        teaching: Teaching,
        config: TrainConfig,
        *,
        lr: float,
        num_steps: int,
        ranks: Ranks = SOLO,
        shards: Shards | None = None,
        clock: PhaseClock = no_clock,
        record: Recorder | None = None,
    ) -> None:
        assert draft.spec.aux_boundaries is not None, "a draft in training has aux boundaries"
        self.draft, self.teaching, self.device = draft, teaching, teaching.parts.device
        self.config, self.ranks, self.shards = config, ranks, shards
        self._lr, self._num_steps, self._clock = lr, num_steps, clock
        self._aux_boundaries = draft.spec.aux_boundaries
        named = draft.named_parameters() if shards is None else shards.local_parameters()
        self.optimiser = GuardedOptimiser(named, config, lr, SOLO if shards is None else ranks, shards)
        # With a bf16 target the draft computes in bf16 too; its fp32 weights are cast once a step.
        half = teaching.parts.dtype
        dtype = half if half == torch.bfloat16 else draft.dtype
        self._micro_batch = config.micro_batch_on(self.device.type)
        is_fused = config.unroll != "modules"
        with self.whole_draft():
            self._unroll = make_unroll(
                draft, config.ttt_steps, dtype, is_fused=is_fused, dropped_share=config.feedback_dropout
            )
        self._pads = teaching.states.pads or self._unroll.pads
        self._vocabulary = DraftVocabulary.of(draft, self.device)
        self._distributions = distributions_for(
            self.device, dtype, is_fused=is_fused, temperature=config.teacher_temperature
        )
        self.data_wait = DataWait.of(self.device)
        if teaching.feed is not None:
            teaching.feed.waiting = self.data_wait
        self._captured: CapturedMicroBatches | None = None
        if record is not None and isinstance(self._unroll, FusedUnroll) and self.why_not_captured is None:
            self._captured = CapturedMicroBatches(
                draft, self._unroll, config.ttt_steps, self._accumulate, record, self.data_wait
            )

    @property
    def is_captured(self) -> bool:
        """Whether micro-batches are recorded and replayed."""
        return self._captured is not None

    @property
    def why_not_captured(self) -> str | None:
        """Why micro-batches cannot be recorded; None where they can."""
        return why_not_captured(self.teaching.states, self._unroll, has_shards=self.shards is not None)

    def whole_draft(self) -> AbstractContextManager[None]:
        """Inside, the draft's parameters are whole. With shards, all ranks enter together."""
        return nullcontext() if self.shards is None else self.shards.whole()

    @contextmanager
    def draft_as_served(self) -> Iterator[None]:
        """Inside, the draft is whole and has the weights that a file of it would hold: averaged, where asked for."""
        with self.optimiser.averaged(), self.whole_draft():
            yield

    def draft_to_write(self) -> Eagle3Draft:
        """The draft without shards; inside `whole_draft` or `draft_as_served`."""
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
        figures, padding_share = self._gradients(rows, step)
        lr = self._lr * lr_share(step, self._num_steps, self.config)
        with self._clock("optimiser"):
            norms = self.optimiser.update(lr, figures[0], average_keep(step, self._num_steps, self.config))
        return PendingStep(
            step=step, figures=figures, norms=norms, names=self.optimiser.names, lr=lr, padding_share=padding_share
        )

    def require_reference(self, row: TokenRow) -> float | None:
        """Compare the fused step with the modules; see `step.reference_check`. With shards, all ranks call it."""
        if self.config.unroll == "modules":
            return None
        with self.whole_draft():
            return require_reference(self.draft, self.teaching.states, row, self.config.ttt_steps, self.teaching.plain)

    def order_of(self, steps: Iterable[Sequence[TokenRow]]) -> Iterator[int]:
        """Numbers of this rank's rows in the order in which `start_step` reads their states, for these batches."""
        for rows in steps:
            for part in self._parts(rows):
                if least_shape(part, 1).num_teachers:
                    yield from (row.number for row in part)

    def _parts(self, rows: Sequence[TokenRow]) -> list[list[TokenRow]]:
        """This rank's micro-batches."""
        mine = [rows[i] for i in self.ranks.share([len(row.token_ids) for row in rows])]
        return (even_micro_batches if self._pads else micro_batches)(mine, self._micro_batch)

    def time_step(self, rows: Sequence[TokenRow]) -> float:
        """Seconds of a step on `rows` without its update; the weights stay as they are. All ranks call it together."""
        begin = time.monotonic()
        self._gradients(rows, 0)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.monotonic() - begin

    def _gradients(self, rows: Sequence[TokenRow], step: int) -> tuple[Tensor, float]:
        """Gradients of the batch, summed over micro-batches and ranks; its figures and its share of padding."""
        config = self.config
        with self.data_wait():
            objective = TttObjective.of(config.loss, config.step_decay, count_targets(rows, config.ttt_steps))
            parts = self._parts(rows)
        self.optimiser.forget_gradients()
        step_weights = objective.weights_on(self.device)
        with self.whole_draft():
            self._unroll.refresh()
            add = self._add_captured if self._captured is not None else self._add_computed
            figures, num_positions = add(parts, step_weights, step)
            self._unroll.publish()
            if self.shards is not None:
                self.shards.reduce_gradients()
        self.ranks.sum_in_place([figures] if self.shards else [*self.optimiser.gradients(), figures])
        num_tokens = sum(len(row.token_ids) for part in parts for row in part)
        return figures, 1 - num_tokens / num_positions if num_positions else 0.0

    def _add_computed(self, parts: Sequence[Sequence[TokenRow]], step_weights: Tensor, step: int) -> tuple[Tensor, int]:
        """Add the gradients of micro-batches; gives their figures and the number of positions."""
        num_positions = 0
        figures = torch.zeros(1 + 7 * self.config.ttt_steps, dtype=torch.float64, device=self.device)
        for number, part in enumerate(parts):
            self._reseed(step, number)
            with self.data_wait():
                packed = pack(part, self.config.ttt_steps, self.device)
            num_positions += packed.num_padded if self._pads else packed.length
            figures += self._accumulate(packed, step_weights)
        return figures, num_positions

    def _add_captured(self, parts: Sequence[Sequence[TokenRow]], step_weights: Tensor, step: int) -> tuple[Tensor, int]:
        """`_add_computed`, by what was recorded."""
        assert self._captured is not None, "asked only with a recorder"
        self._captured.begin(step_weights)
        num_positions = 0
        for number, part in enumerate(parts):
            self._reseed(step, number)
            num_positions += self._captured.add(part)
        return self._captured.figures.clone(), num_positions

    def _reseed(self, step: int, number: int) -> None:
        """What is dropped depends on seed, step, rank and micro-batch alone: a resumed run drops the same."""
        if isinstance(self._unroll, FusedUnroll) and self.config.feedback_dropout:
            self._unroll.dropping.reseed(self.config.seed, step, self.ranks.rank, number)

    def _accumulate(self, packed: Packed, step_weights: Tensor) -> Tensor:
        """Add one micro-batch's gradients; its `pack_figures` stay on the device."""
        if len(packed.teachers) == 0:
            return pack_figures(*no_counts(self.config.ttt_steps, self.device))
        with self._clock("target"):
            states = self.teaching.states(packed, self._aux_boundaries)
        loss, counts = ttt_backward(
            self._unroll,
            packed,
            states,
            self.config.loss,
            step_weights,
            teacher=self.teaching.parts,
            vocabulary=self._vocabulary,
            ops=self._distributions,
            clock=self._clock,
        )
        return pack_figures(loss, counts)
