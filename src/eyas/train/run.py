"""The optimiser steps of a run, from its plan or its checkpoint to its end. Files only through `checkpoint`."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.records.checkpoint import CheckpointState
from eyas.talk import Progress, Talk
from eyas.train.checkpoint import restore, save_checkpoint
from eyas.train.plan import TrainPlan
from eyas.train.step_outcome import StepOutcome
from eyas.train.trainer import Trainer

METRICS_SCHEMA = "eyas.metrics/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """Where and when the unfinished run is kept.

    Attributes:
        folder: beside the output.
        every_s: seconds between checkpoints; 0 = never.
        run: what decides the run.
        state: where a run kept earlier stands; None to start.
    """

    folder: Path
    every_s: float
    run: Mapping[str, Any]
    state: CheckpointState | None


def run_steps(trainer: Trainer, plan: TrainPlan, keep: Checkpointing, talk: Talk) -> list[dict[str, Any]]:
    """Train to the end; gives one metrics record per optimiser step.

    Raises:
        TrainingDiverged: see `Trainer.train_step`.
    """
    metrics: list[dict[str, Any]] = []
    first = 0
    if keep.state is not None:
        metrics = restore(keep.folder, trainer, keep.state)
        first = keep.state.step
        talk.line(f"going on after step {first} of {len(plan.batches)} (kept in {keep.folder})")
    spent_before: float = metrics[-1]["seconds"] if metrics else 0.0
    num_tokens: int = metrics[-1]["tokens"] if metrics else 0
    start = last_kept = time.monotonic()

    with talk.progress("train", plan.num_tokens, "tokens") as bar:
        bar.advance(num_tokens)
        for step in range(first, len(plan.batches)):
            batch = plan.batches[step]
            outcome = trainer.train_step([plan.rows[row] for row in batch.rows], step)
            num_tokens += batch.num_tokens
            spent = spent_before + time.monotonic() - start
            metrics.append(_record(step, num_tokens, spent, outcome))
            _show(bar, batch.num_tokens, metrics[-1])
            if keep.every_s and time.monotonic() - last_kept >= keep.every_s:
                state = CheckpointState(step=len(metrics), num_tokens=num_tokens, run=keep.run)
                save_checkpoint(keep.folder, trainer, state, metrics)
                last_kept = time.monotonic()
    return metrics


def _record(step: int, num_tokens: int, seconds: float, outcome: StepOutcome) -> dict[str, Any]:
    return {
        "schema": METRICS_SCHEMA,
        "step": step + 1,
        "tokens": num_tokens,
        "seconds": round(seconds, 3),
        "loss": outcome.loss,
        "lr": outcome.lr,
        "grad_norm": outcome.grad_norm,
        **outcome.counts.as_record(),
    }


def _show(bar: Progress, num_tokens: int, record: Mapping[str, Any]) -> None:
    accuracy = record["accuracy"][0]
    shown = "–" if accuracy is None else f"{accuracy:.0%}"
    rate = record["tokens"] / record["seconds"] if record["seconds"] else 0.0
    bar.say(f"loss {record['loss']:.3f}  step-0 accuracy {shown}  {rate:.0f} tok/s")
    bar.advance(num_tokens)
