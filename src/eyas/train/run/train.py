"""`eyas train`: rows to a draft, online: the target runs in the same process and no hidden state touches a disk."""

import errno
import hashlib
import os
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from eyas.errors import ExitCode, EyasError
from eyas.models.load_draft import load_draft
from eyas.models.placement import Placement
from eyas.models.target import Target
from eyas.models.target_folder import fingerprint_weights
from eyas.records import fingerprint
from eyas.records.checkpoint import LAST_GOOD, resume_folder
from eyas.records.eval_record import Figures
from eyas.replay.figures import is_nothing_accepted, nothing_accepted
from eyas.talk import Talk
from eyas.train.config import TrainConfig
from eyas.train.optimise.ranks import SOLO, RankPlace, Ranks, joined
from eyas.train.optimise.sharding import Shards
from eyas.train.optimise.trainer import Trainer
from eyas.train.preflight.examine import check_target, say_time
from eyas.train.preflight.starting_draft import starting_draft
from eyas.train.preflight.train_plan import TrainPlan, run_identity
from eyas.train.request import TrainRequest
from eyas.train.run.held_out_replay import HeldOutReplay
from eyas.train.run.metrics_journal import held_out_of, steps_of
from eyas.train.run.run_steps import Checkpointing, RunOutcome, Watch, run_steps, take_best
from eyas.train.run.sinks import open_sinks
from eyas.train.run.stopping import Listen, TrainingStopped, never_asked
from eyas.train.run.unfinished_run import read_state, throw_away
from eyas.train.run.write_draft import write_draft


class RunInProgress(EyasError):
    """Another process is training the same draft."""

    code = "run-in-progress"


class DeviceOutOfMemory(EyasError):
    """A GPU's memory is not enough for the run."""

    code = "device-out-of-memory"
    exit_code = ExitCode.ENVIRONMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The outcome.

    Attributes:
        metrics: of all optimiser steps (none with `init_only`).
        held_out: of all replays.
        kept: the replay that chose the draft; None where the last one was written.
        written: the replay of the draft's own file; None without held-out rows.
        notes: what is wrong with the draft, if its figures show it.
    """

    plan: TrainPlan
    metrics: Sequence[Mapping[str, Any]]
    out: Path
    held_out: Sequence[Mapping[str, Any]] = ()
    kept: Mapping[str, Any] | None = None
    written: Mapping[str, Any] | None = None
    notes: Sequence[str] = ()


def train(
    request: TrainRequest,
    config: TrainConfig,
    plan: TrainPlan,
    talk: Talk,
    place: RankPlace | None = None,
    *,
    listen: Listen = never_asked,
) -> Trained:
    """Train as planned and write the draft with its metrics; a rerun of a killed run goes on from its checkpoint.

    Args:
        place: of this process among those that train together; None for a process alone. Only the first one writes.
        listen: tells whether the run shall stop after the step that it is at.

    Raises:
        RunInProgress: another process trains the same draft.
        CheckpointForeign, CheckpointDamaged: an unfinished run is there and cannot be gone on with.
        TeacherWrong: see `teacher_check`.
        TrainingDiverged: a loss or gradient is not finite; the state before it is kept.
        TrainingStopped: `listen` wanted it; a rerun goes on from there.
        DeviceOutOfMemory: the GPU's memory is not enough.
        OutputExists, WriteFailed: see `records.atomic`.
    """
    placement = request.placement(place.local_rank if place else 0)
    is_first = place is None or place.rank == 0
    try:
        with _only_one(request.out) if is_first else nullcontext():
            keep = _checkpointing(request, config, plan, placement, listen)
            with joined(place, placement.device) as ranks:
                return _train(request, config, plan, keep, placement, ranks, talk)
    except torch.OutOfMemoryError as error:
        raise DeviceOutOfMemory(
            f"the memory of {placement.device} is not enough",
            f"--micro-batch-tokens {config.micro_batch_on(placement.device.type)}",
            str(error).splitlines()[0],
            "give a smaller --micro-batch-tokens (the result stays the same), shorter rows, or more GPUs with --shard",
        ) from error


def _train(
    request: TrainRequest,
    config: TrainConfig,
    plan: TrainPlan,
    keep: Checkpointing,
    placement: Placement,
    ranks: Ranks,
    talk: Talk,
) -> Trained:
    talk.line(f"loading the target {request.target.name} ({placement.dtype}, {placement.device})".replace("torch.", ""))
    target = Target.load(request.target, placement)
    draft = starting_draft(request, config, plan, target, talk)
    if request.init_only:
        if ranks.is_first:
            write_draft(request.out, request, config, plan, draft, [])
        return Trained(plan=plan, metrics=[], out=request.out)
    if keep.state is None:
        check_target(target, request, plan, talk)
        say_time(plan, placement.device, ranks.size, talk)
    shards = None
    if request.shard and ranks.size > 1:
        shards = Shards(draft, ranks.size, placement.device)
    elif request.shard:
        talk.note("--shard does nothing on one process")
    trainer = Trainer(
        draft, target, config, lr=plan.resolved.lr, num_steps=len(plan.batches), ranks=ranks, shards=shards
    )
    outcome = _run(request, config, plan, trainer, keep, talk)
    kept = written = None
    notes = list[str]()
    with trainer.whole_draft():
        if ranks.is_first:
            draft = trainer.draft_to_write()
            kept = take_best(outcome, draft) if config.keep == "best" else None
            replay = None if plan.held_out is None else partial(_replay_file, config, plan, target, notes)
            written = write_draft(request.out, request, config, plan, draft, outcome.records, kept, replay=replay)
            shutil.rmtree(keep.folder, ignore_errors=True)
    for note in notes:
        talk.note(note)
    return Trained(
        plan=plan,
        metrics=steps_of(outcome.records),
        out=request.out,
        held_out=held_out_of(outcome.records),
        kept=kept,
        written=written,
        notes=notes,
    )


def _replay_file(config: TrainConfig, plan: TrainPlan, target: Target, notes: list[str], folder: Path) -> Figures:
    """What the draft in `folder` accepts, read as anybody would read it; adds to `notes` if that is nothing."""
    assert plan.held_out is not None, "asked only with held-out rows"
    placement = Placement(target.parts.embedding.dtype, target.device)
    draft = load_draft(
        folder,
        placement,
        target_spec=plan.target,
        target_embedding=target.parts.embedding,
        target_head=target.parts.head,
    )
    figures = HeldOutReplay(target, plan.held_out.rows, config.held_out_draft_tokens, SOLO).measure(draft)
    if is_nothing_accepted(figures):
        causes = f"too few training tokens ({plan.num_tokens}), or answers that this target did not write"
        notes.append(nothing_accepted(figures, causes))
    return figures


def _run(
    request: TrainRequest, config: TrainConfig, plan: TrainPlan, trainer: Trainer, keep: Checkpointing, talk: Talk
) -> RunOutcome:
    """The optimiser steps; raises what stopped them, once the last good draft is kept."""
    is_first = trainer.ranks.is_first
    held_out = None
    if plan.held_out is not None:
        held_out = HeldOutReplay(trainer.target, plan.held_out.rows, config.held_out_draft_tokens, trainer.ranks)
    known = {} if keep.state is None else keep.state.wandb_runs
    about = plan.as_document()
    sinks = open_sinks(request.tensorboard, request.wandb, request.out.name, about, known) if is_first else []
    watch = Watch(
        held_out=held_out,
        eval_every=plan.eval_every,
        is_first_replayed=request.init_from is not None,
        log_every=config.log_every or (10 if trainer.target.device.type == "cuda" else 1),
        sinks=sinks,
        wandb_runs={**known, **{project: run_id for sink in sinks for project, run_id in sink.runs().items()}},
    )
    try:
        outcome = run_steps(trainer, plan, keep, watch, talk)
    finally:
        for sink in sinks:
            sink.close()
    if outcome.error is not None:
        with trainer.whole_draft():
            if is_first and keep.folder.exists():
                write_draft(keep.folder / LAST_GOOD, request, config, plan, trainer.draft_to_write(), outcome.records)
        if outcome.is_error_everyones:
            trainer.ranks.gather(None)  # a launcher ends the first one, which writes, with any other that leaves
        if keep.folder.exists():
            outcome.error.add_note(
                f"the draft before that step is kept: --init-from {keep.folder / LAST_GOOD}, with another --out"
            )
        raise outcome.error
    if outcome.stopped_after is not None:
        is_kept = keep.every_s > 0
        raise TrainingStopped.after(outcome.stopped_after, len(plan.batches), keep.folder, is_kept=is_kept)
    return outcome


def _checkpointing(
    request: TrainRequest, config: TrainConfig, plan: TrainPlan, placement: Placement, listen: Listen
) -> Checkpointing:
    folder = resume_folder(request.out)
    if request.restart:
        throw_away(folder)
    init_from = None
    if request.init_from is not None:
        around = request.init_from.glob("*") if request.init_from.is_dir() else [request.init_from]
        init_from = fingerprint.of_files(sorted(p for p in around if p.suffix in (".safetensors", ".bin", ".json")))
    run = run_identity(
        plan,
        config,
        weights=fingerprint_weights(request.target),
        dtype=str(placement.dtype).removeprefix("torch."),
        init_from=init_from,
    )
    state = read_state(folder, run)
    return Checkpointing(folder=folder, every_s=config.checkpoint_every_s, run=run, state=state, listen=listen)


@contextmanager
def _only_one(out: Path) -> Iterator[None]:
    """While open, no other process of this machine opens it for the same `out`. Nothing lies on the disk, and a process
    that is killed lets go.

    Raises:
        RunInProgress: one has it open.
    """
    name = hashlib.sha256(os.fsencode(os.path.realpath(out))).hexdigest()
    with socket.socket(socket.AF_UNIX) as claim:
        try:
            claim.bind(f"\0eyas-train-{name}")  # no file, but a name that the kernel keeps
        except OSError as error:  # another one than this: not Linux, which alone has such names
            if error.errno == errno.EADDRINUSE:
                raise RunInProgress(
                    f"{out} is being trained already",
                    str(out),
                    "another process of this machine is at it, and both would write the same unfinished run by turns",
                    "let it end, or end it and run this command again; or choose another --out",
                ) from None
        yield
