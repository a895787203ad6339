"""`eyas train`: rows to a draft. The target runs in the same process, or its states come from elsewhere."""

import errno
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from eyas import __version__
from eyas.contract.convert.sidecar import NAME
from eyas.errors import ExitCode, EyasError
from eyas.models.draft import Eagle3Draft
from eyas.models.load_draft import load_draft
from eyas.models.placement import Placement
from eyas.models.save_draft import save_draft
from eyas.models.target_folder import fingerprint_weights
from eyas.records import fingerprint
from eyas.records.atomic import atomic_folder
from eyas.records.checkpoint import LAST_GOOD, METRICS, resume_folder
from eyas.replay.figures import is_nothing_accepted, nothing_accepted
from eyas.talk import Talk
from eyas.train.config import TrainConfig
from eyas.train.optimise.ranks import SOLO, RankPlace, Ranks, joined
from eyas.train.optimise.sharding import Shards
from eyas.train.optimise.teaching import Teaching
from eyas.train.optimise.trainer import Trainer
from eyas.train.preflight.examine import check_target, say_reference, say_time
from eyas.train.preflight.open_teaching import open_teaching
from eyas.train.preflight.starting_draft import starting_draft
from eyas.train.preflight.train_plan import TrainPlan, run_identity
from eyas.train.request import TrainRequest
from eyas.train.run.held_out_replay import HeldOutReplay
from eyas.train.run.metrics_journal import WRITTEN_SCHEMA, held_out_of, open_sinks, replay_record, steps_of
from eyas.train.run.run_steps import Checkpointing, RunOutcome, Watch, run_steps, take_best
from eyas.train.run.stopping import Listen, TrainingStopped, never_asked
from eyas.train.run.unfinished_run import read_state, throw_away
from eyas.train.step.captured import CudaGraphs, Recorder

# Of a micro-batch: more takes a GPU longer than the host needs to launch it, and padding would cost more than launches.
# On an H200 an 8B target (234e12) is 2 % slower with graphs, SmolLM2 (2e12 … 20e12) up to 5 times as fast:
# benchmarks/train_step_h200_202611.md.
_MOST_CAPTURED_FLOP = 5e13


class RunInProgress(EyasError):
    """Another process is training the same draft."""

    code = "run-in-progress"


class DeviceOutOfMemory(EyasError):
    """The GPU has too little memory for the run."""

    code = "device-out-of-memory"
    exit_code = ExitCode.ENVIRONMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The outcome.

    Attributes:
        metrics: records of all optimiser steps (none with `init_only`).
        held_out: records of all replays.
        kept: the replay that chose the draft; None where the last draft was written.
        written: the replay of the written file; None without held-out rows.
        notes: what the figures show to be wrong with the draft.
        fed: the first rank's states from elsewhere, what went through; None with the target in the process.
    """

    plan: TrainPlan
    metrics: Sequence[Mapping[str, Any]]
    out: Path
    held_out: Sequence[Mapping[str, Any]] = ()
    kept: Mapping[str, Any] | None = None
    written: Mapping[str, Any] | None = None
    notes: Sequence[str] = ()
    fed: Mapping[str, Any] | None = None


def train(
    request: TrainRequest,
    config: TrainConfig,
    plan: TrainPlan,
    talk: Talk,
    place: RankPlace | None = None,
    *,
    listen: Listen = never_asked,
) -> Trained:
    """Train as planned and write the draft with its metrics; a rerun of a killed run resumes from its checkpoint.

    Args:
        place: of this process among the ranks; None for a single process. Only the first rank writes.
        listen: says whether the run is asked to stop after its present step.

    Raises:
        RunInProgress: another process trains the same draft.
        CheckpointForeign, CheckpointDamaged: there is an unfinished run that cannot be resumed.
        TeacherWrong, FusedStepDiffers: see `target_checks` and `step.reference_check`.
        TrainingDiverged: a loss or gradient is not finite; the state before it is kept.
        TrainingStopped: `listen` asked for it; a rerun resumes there.
        DeviceOutOfMemory: the GPU has too little memory.
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
            f"{placement.device} has too little memory",
            f"--micro-batch-tokens {config.micro_batch_on(placement.device.type)}",
            str(error).splitlines()[0],
            "give a smaller --micro-batch-tokens (same result), shorter rows, or more GPUs with --shard",
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
    teaching = open_teaching(request, config, plan, placement, talk)
    draft = starting_draft(request, config, plan, teaching.parts, talk)
    if request.init_only:
        if ranks.is_first:
            write_draft(request.out, request, config, plan, draft, [])
        return Trained(plan=plan, metrics=[], out=request.out)
    if keep.state is None:
        check_target(teaching, request, plan, talk)
    shards = None
    if request.shard and ranks.size > 1:
        shards = Shards(draft, ranks.size, placement.device)
    elif request.shard:
        talk.note("--shard has no effect on one process")
    trainer = Trainer(
        draft,
        teaching,
        config,
        lr=plan.resolved.lr,
        num_steps=len(plan.batches),
        ranks=ranks,
        shards=shards,
        record=_recorder(config, plan, placement.device) if ranks.size == 1 else None,
    )
    if trainer.is_captured:
        talk.line("steps are recorded as CUDA graphs, one for each shape of a micro-batch (--unroll eager: without)")
    say_reference(plan, trainer, talk)
    if keep.state is None:
        say_time(plan, trainer, talk)
    outcome = _run(request, config, plan, trainer, keep, talk)
    kept = written = None
    notes = list[str]()
    with trainer.draft_as_served():
        if ranks.is_first:
            draft = trainer.draft_to_write()
            kept = take_best(outcome, draft) if config.keep == "best" else None
            replay = None if plan.held_out is None else partial(_replay_file, config, plan, teaching, notes)
            written = write_draft(request.out, request, config, plan, draft, outcome.records, kept, replay=replay)
            shutil.rmtree(keep.folder, ignore_errors=True)
    for note in notes:
        talk.note(note)
    if outcome.fed is not None:
        talk.line(str(outcome.fed))
    return Trained(
        plan=plan,
        metrics=steps_of(outcome.records),
        out=request.out,
        held_out=held_out_of(outcome.records),
        kept=kept,
        written=written,
        notes=notes,
        fed=None if outcome.fed is None else outcome.fed.as_document(),
    )


def _recorder(config: TrainConfig, plan: TrainPlan, device: torch.device) -> Recorder | None:
    """CUDA graphs where a micro-batch is computed faster than it is launched; None elsewhere."""
    tokens = min(config.micro_batch_on(device.type), plan.resolved.batch_tokens)
    is_small = tokens * plan.costs.flop_per_token < _MOST_CAPTURED_FLOP
    is_wanted = config.unroll == "fused" and device.type == "cuda" and is_small
    return CudaGraphs(device) if is_wanted else None


def _replay_file(
    config: TrainConfig, plan: TrainPlan, teaching: Teaching, notes: list[str], folder: Path
) -> dict[str, Any]:
    """Replay the draft in `folder`, loaded from its file; adds to `notes` if nothing is accepted.

    Returns:
        `replay_record`; where the held-out rows are of several sets, also `sets`: name -> accept length.
    """
    assert plan.held_out is not None, "asked only with held-out rows"
    teacher = teaching.parts
    draft = load_draft(
        folder,
        Placement(teacher.dtype, teacher.device),
        target_spec=plan.target,
        target_embedding=teacher.embedding,
        target_head=teacher.head,
    )
    held_out = _held_out_replay(config, plan, teaching, SOLO)
    figures = held_out.measure(draft)
    if is_nothing_accepted(figures):
        causes = f"too few training tokens ({plan.num_tokens}), or answers that this target did not write"
        notes.append(nothing_accepted(figures, causes))
    several = len({row.set for row in plan.held_out.rows}) > 1
    return replay_record(figures) | ({"sets": held_out.by_set(draft)} if several else {})


def _held_out_replay(config: TrainConfig, plan: TrainPlan, teaching: Teaching, ranks: Ranks) -> HeldOutReplay:
    assert plan.held_out is not None, "asked only with held-out rows"
    assert teaching.held_out is not None, "held-out rows have states"
    rows, depth = plan.held_out.rows, config.held_out_draft_tokens
    return HeldOutReplay(teaching.held_out, teaching.parts.dtype, rows, depth, ranks)


def _run(
    request: TrainRequest, config: TrainConfig, plan: TrainPlan, trainer: Trainer, keep: Checkpointing, talk: Talk
) -> RunOutcome:
    """The optimiser steps; raises what stopped them, after the last good draft is kept."""
    is_first = trainer.ranks.is_first
    held_out = None
    if plan.held_out is not None:
        held_out = _held_out_replay(config, plan, trainer.teaching, trainer.ranks)
        if trainer.teaching.feed is not None:  # fetched now: in the run, a wait must answer a wish to stop
            with trainer.whole_draft():
                held_out.measure(trainer.draft)
    known = {} if keep.state is None else keep.state.wandb_runs
    about = plan.as_document()
    sinks = open_sinks(request.tensorboard, request.wandb, request.out.name, about, known) if is_first else []
    watch = Watch(
        held_out=held_out,
        eval_every=plan.eval_every,
        is_first_replayed=request.init_from is not None,
        log_every=config.log_every or (10 if trainer.device.type == "cuda" else 1),
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
            trainer.ranks.gather(None)  # a rank that ends would make the launcher end the first one, which still writes
        if keep.folder.exists():
            outcome.error.add_note(
                f"the draft before that step is kept: give --init-from {keep.folder / LAST_GOOD} and another --out"
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
    """While open, no other process of this machine can open it for the same `out`. It writes no file, and ends with its
    process.

    Raises:
        RunInProgress: another process has it open.
    """
    name = hashlib.sha256(os.fsencode(os.path.realpath(out))).hexdigest()
    with socket.socket(socket.AF_UNIX) as claim:
        try:
            claim.bind(f"\0eyas-train-{name}")  # a name kept by the kernel, not a file
        except OSError as error:  # any other error: not Linux, which alone has such names
            if error.errno == errno.EADDRINUSE:
                raise RunInProgress(
                    f"another process is training {out} already",
                    str(out),
                    "both processes would write the same unfinished run, one over the other",
                    "wait for that process, or end it and run this command again; or choose another --out",
                ) from None
        yield


def write_draft(
    out: Path,
    request: TrainRequest,
    config: TrainConfig,
    plan: TrainPlan,
    draft: Eagle3Draft,
    records: Sequence[Mapping[str, Any]],
    kept: Mapping[str, Any] | None = None,
    *,
    replay: Callable[[Path], Mapping[str, Any]] | None = None,
) -> Mapping[str, Any] | None:
    """Write the draft's folder: weights, config and sidecar by `save_draft`, metrics beside them.

    Args:
        kept: the replay that chose this draft; None for the last draft.
        replay: replays the draft in a folder over the held-out rows and gives its record, or None.

    Returns:
        The record of that replay, or None.
    """
    steps = steps_of(records)
    written = kept or (steps[-1] if steps else {"step": 0, "tokens": 0})
    about = {
        "trained_by": f"eyas {__version__}",
        "rows": plan.as_document()["rows"],
        "template_options": dict(plan.rows.manifest.template_options),
        "target_weights": fingerprint_weights(request.target),
        "states": plan.states and (plan.stored.reader.about.source if plan.stored else plan.states),
        "options": asdict(config),
        "lr": plan.resolved.lr,
        "batch_tokens": plan.resolved.batch_tokens,
        "steps": written["step"],
        "tokens": written["tokens"],
        "held_out": dict(kept) if kept is not None else None,
    }
    with atomic_folder(out) as aside:
        save_draft(draft, aside, target_spec=plan.target, about=about, replace_existing=True)
        for weights in aside.glob("*.safetensors"):
            weights.chmod(0o644)  # safetensors makes it readable by the owner only
        as_written = None
        if replay is not None:
            place = {"schema": WRITTEN_SCHEMA, "step": written["step"], "tokens": written["tokens"]}
            as_written = {**place, **replay(aside)}
            _add_to_sidecar(aside / NAME, as_written)
        lines = [*records, *([] if as_written is None else [as_written])]
        if records:
            (aside / METRICS).write_text("".join(json.dumps(record) + "\n" for record in lines), encoding="utf-8")
    return as_written


def _add_to_sidecar(path: Path, as_written: Mapping[str, Any]) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    document["about"]["as_written"] = as_written
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
