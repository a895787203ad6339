"""The optimiser steps of a run, from its plan or its checkpoint to its end. Files only through `unfinished_run`."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyas.data.text.tokenise import TokenRow
from eyas.models.draft import Eagle3Draft
from eyas.models.states import states_of_row
from eyas.records.checkpoint import CheckpointState
from eyas.talk import Talk
from eyas.train.feed.fed_states import FeedReport
from eyas.train.feed.read_ahead import FeedStopped
from eyas.train.optimise.trainer import Trainer
from eyas.train.preflight.examine import say_first_step
from eyas.train.preflight.train_plan import TrainPlan
from eyas.train.run.held_out_replay import HeldOutReplay
from eyas.train.run.metrics_journal import MetricsJournal, Sink, Speedometer, best_of
from eyas.train.run.stopping import Listen, never_asked
from eyas.train.run.unfinished_run import draft_tensors, put_tensors, restore, save_checkpoint

_MOST_ROWS = 64  # of a failed step that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """Where and when the unfinished run is kept.

    Attributes:
        folder: beside the output.
        every_s: seconds between checkpoints; 0 = never.
        run: `run_identity`.
        state: of the checkpoint to resume; None to start.
        listen: opened around the steps; says whether the run is asked to stop, with a checkpoint.
    """

    folder: Path
    every_s: float
    run: Mapping[str, Any]
    state: CheckpointState | None
    listen: Listen = never_asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What is measured while training, and where it is reported.

    Attributes:
        held_out: replays the held-out rows, or None.
        eval_every: steps between replays.
        is_first_replayed: replay before the first step too: the draft of `--init-from` may stay the best.
        log_every: steps between readings of the device.
        sinks: besides metrics.jsonl.
        wandb_runs: project -> run id, of this run and of the run that it resumes.
    """

    held_out: HeldOutReplay | None
    eval_every: int
    is_first_replayed: bool
    log_every: int
    sinks: Sequence[Sink] = ()
    wandb_runs: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class RunOutcome:
    """How a run ended.

    Attributes:
        records: one per optimiser step and one per replay, in order (`journal`).
        best: tensors of the draft with the largest accept length; None without a replay.
        error: `TrainingDiverged`; the trainer's draft is then that of the last good step.
        is_error_everyones: all ranks have read the error at this step; else only the first one has.
        stopped_after: steps done when it stopped on request; None otherwise.
        fed: what states from elsewhere went through; None with the target here.
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Tensor] | None = None
    error: Exception | None = None
    is_error_everyones: bool = False
    stopped_after: int | None = None
    fed: FeedReport | None = None


def run_steps(trainer: Trainer, plan: TrainPlan, keep: Checkpointing, watch: Watch, talk: Talk) -> RunOutcome:
    """Train to the end, to the first step that is not finite, or until asked to stop."""
    outcome, first = RunOutcome(), 0
    if keep.state is not None:
        restored = restore(keep.folder, trainer, keep.state)
        outcome = RunOutcome(restored.metrics, restored.best)
        first = keep.state.step
        talk.line(f"resuming after step {first} of {len(plan.batches)} (kept in {keep.folder})")
    say_first_step(talk)
    speedometer = Speedometer.of(trainer.device, plan.costs.flop_per_token, trainer.ranks.size)
    order = trainer.order_of([plan.rows[row] for row in batch.rows] for batch in plan.batches[first:])
    feed = trainer.teaching.feed
    with ExitStack() as open_:
        is_asked = open_.enter_context(keep.listen())
        bar = open_.enter_context(talk.progress("train", plan.num_tokens, "tokens"))
        # Of several ranks, one that stops in the middle of a step would leave the others waiting for its gradients.
        is_alone = trainer.ranks.size == 1
        asked = is_asked if is_alone else lambda: False
        ahead = None if feed is None else open_.enter_context(feed.ahead(order, asked))
        journal = MetricsJournal(outcome.records, speedometer, watch.sinks, bar, trainer.data_wait)
        _Run(trainer, plan, keep, watch, journal, outcome, is_asked).go(first)
        if feed is not None and ahead is not None:
            outcome.fed = feed.report(ahead)
    return outcome


@dataclass(slots=True)
class _Run:
    trainer: Trainer
    plan: TrainPlan
    keep: Checkpointing
    watch: Watch
    journal: MetricsJournal
    outcome: RunOutcome
    is_asked: Callable[[], bool]
    last_kept: float = field(default_factory=time.monotonic)

    def go(self, first: int) -> None:
        last = len(self.plan.batches)
        if first == 0 and self.watch.held_out is not None and self.watch.is_first_replayed:
            with self.journal.pausing():
                self._replay(0)
        for step in range(first, last):
            batch = self.plan.batches[step]
            with self.trainer.data_wait():
                rows = [self.plan.rows[row] for row in batch.rows]
            try:
                self.journal.add(self.trainer.start_step(rows, step), batch.num_tokens)
            except FeedStopped:
                self._stop_waiting(step)
                return
            done = step + 1
            is_replayed = self.watch.held_out is not None and (done == last or done % self.watch.eval_every == 0)
            is_read = is_replayed or done == last or done % self.watch.log_every == 0
            is_stopped = done < last and self._is_stop_wanted(is_read)
            is_kept = self._is_checkpoint_due(is_read, is_stopped)
            if not (is_read or is_kept or is_stopped):
                continue
            self.outcome.error = self.journal.flush()
            if self.outcome.error is not None:
                self.outcome.is_error_everyones = is_read
                self._keep_last_good()
                return
            with self.journal.pausing():
                if is_replayed:
                    self._replay(done)
                if is_kept:
                    self._checkpoint(done)
            if is_stopped:
                self.trainer.ranks.gather(done)  # the launcher ends all ranks once one has ended
                self.outcome.stopped_after = done
                return

    def _stop_waiting(self, done: int) -> None:
        """End after `done` steps: the next one waits for states, and the run is asked to stop."""
        self.outcome.error = self.journal.flush()
        if self.outcome.error is not None:
            self.outcome.is_error_everyones = True
            self._keep_last_good()
            return
        if self.keep.every_s > 0:
            with self.journal.pausing():
                self._checkpoint(done)
        self.outcome.stopped_after = done

    def _replay(self, step: int) -> None:
        assert self.watch.held_out is not None, "asked only with held-out rows"
        begin = time.monotonic()
        with self.trainer.draft_as_served():
            figures = self.watch.held_out.measure(self.trainer.draft)
            record = self.journal.add_held_out(step, figures, time.monotonic() - begin)
            if record["is_best"] and self.trainer.ranks.is_first:
                self.outcome.best = draft_tensors(self.trainer.draft)

    def _is_stop_wanted(self, is_read: bool) -> bool:
        """Whether any rank is asked to stop. Several ranks agree on the step, but only where they wait anyway."""
        ranks = self.trainer.ranks
        if ranks.size == 1:
            return self.is_asked()
        return is_read and any(ranks.gather(self.is_asked()))

    def _is_checkpoint_due(self, is_read: bool, is_stopped: bool) -> bool:
        """Whether a checkpoint is due, by the first rank's clock. With shards all ranks ask it, where they wait."""
        is_old = is_stopped or time.monotonic() - self.last_kept >= self.keep.every_s
        is_due = self.keep.every_s > 0 and is_old
        if self.trainer.shards is None:
            return is_due and self.trainer.ranks.is_first
        return is_read and self.trainer.ranks.gather(is_due)[0]

    def _checkpoint(self, step: int) -> None:
        state = CheckpointState(
            step=step, num_tokens=self.journal.num_tokens, run=self.keep.run, wandb_runs=self.watch.wandb_runs
        )
        save_checkpoint(self.keep.folder, self.trainer, state, self.outcome.records, self.outcome.best)
        self.last_kept = time.monotonic()

    def _keep_last_good(self) -> None:
        assert self.outcome.error is not None, "called because of it"
        done = last_step(self.outcome.records)
        rows = [self.plan.rows[row] for row in self.plan.batches[done].rows]
        with self.trainer.whole_draft():
            self.outcome.error.add_note(find_not_finite(self.trainer, rows))
        if self.keep.every_s > 0 and (self.trainer.ranks.is_first or self.trainer.shards is not None):
            self._checkpoint(done)


def last_step(records: Sequence[Mapping[str, Any]]) -> int:
    """Number of optimiser steps in the records."""
    return max((record["step"] for record in records), default=0)


def take_best(outcome: RunOutcome, draft: Eagle3Draft) -> Mapping[str, Any] | None:
    """Put the best draft into `draft`; gives the record of its replay, None without a replay."""
    best = best_of(outcome.records)
    if best is None or outcome.best is None:
        return None
    put_tensors(draft, outcome.best)
    return best


@torch.no_grad()
def find_not_finite(trainer: Trainer, rows: Sequence[TokenRow]) -> str:
    """Names the first tensor that is not finite, in the order in which a step computes them.

    Args:
        trainer: whose last step failed.
        rows: of that step.
    """
    bad = [name for name, parameter in trainer.draft.named_parameters() if not _is_finite(parameter)]
    if bad:
        return f"weights of the draft are not finite: {', '.join(bad[:4])}"
    boundaries = trainer.draft.spec.aux_boundaries or ()
    for number, row in enumerate(rows[:_MOST_ROWS]):
        states = states_of_row(trainer.teaching.states, row.number, row.token_ids, boundaries)
        where = f"row {number + 1} of the step's {len(rows)} ({len(row.token_ids)} tokens)"
        for boundary, state in zip(boundaries, states.aux.chunk(max(1, len(boundaries)), -1), strict=True):
            if not _is_finite(state):
                return f"the target's state at boundary {boundary} is not finite in {where}: the target overflows"
        if not _is_finite(states.last):
            return f"the target's last state is not finite in {where}: the target overflows"
    return "weights of the draft and states of the target are finite: the draft's own computation overflows"


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())
