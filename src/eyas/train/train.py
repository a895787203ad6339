"""`eyas train`: rows to a draft, online: the target runs in the same process and no hidden state touches a disk."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from eyas import __version__
from eyas.errors import ExitCode, EyasError
from eyas.models.draft import Eagle3Draft
from eyas.models.load_draft import load_draft
from eyas.models.placement import Placement, place
from eyas.models.save_draft import save_draft
from eyas.models.target import Target
from eyas.models.target_folder import fingerprint_weights
from eyas.records import fingerprint
from eyas.records.atomic import OutputExists, atomic_folder
from eyas.records.checkpoint import LAST_GOOD, METRICS, resume_folder
from eyas.talk import Talk
from eyas.train.answers import AnswersCheck, check_answers
from eyas.train.checkpoint import read_state
from eyas.train.config import TrainConfig
from eyas.train.held_out import HeldOut
from eyas.train.initialise import initialise
from eyas.train.journal import held_out_of, steps_of
from eyas.train.plan import TrainPlan, make_plan, run_identity
from eyas.train.run import Checkpointing, RunOutcome, Watch, run_steps, take_best
from eyas.train.sinks import open_sinks, require_sinks
from eyas.train.trainer import Trainer


class DiskTooSmall(EyasError):
    """Checkpoint and draft would not fit on the disk."""

    code = "disk-too-small"
    exit_code = ExitCode.ENVIRONMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """What is trained on what, and where it goes.

    Attributes:
        target: folder of the target.
        rows: folder of `eyas prepare`.
        out: folder of the draft to be.
        init_from: a draft to go on from; its vocabulary map is kept.
        device: "cpu", "cuda", "cuda:N" or "auto".
        dtype: of the target: "float32", "bfloat16" or "auto" (bfloat16 on a GPU); the draft's weights are fp32.
        init_only: write the initialised draft and stop.
        restart: throw an unfinished run away.
        held_out: rows for the replays while training; None for those beside the rows, if there are any.
        tensorboard: folder for event files; None for none.
        wandb: project to report to; None for none.
    """

    target: Path
    rows: Path
    out: Path
    init_from: Path | None = None
    device: str = "auto"
    dtype: str = "auto"
    init_only: bool = False
    restart: bool = False
    held_out: Path | None = None
    tensorboard: Path | None = None
    wandb: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The outcome.

    Attributes:
        metrics: of all optimiser steps (none with `init_only`).
        held_out: of all replays.
        kept: the replay that chose the draft; None where the last one was written.
    """

    plan: TrainPlan
    metrics: Sequence[Mapping[str, Any]]
    out: Path
    held_out: Sequence[Mapping[str, Any]] = ()
    kept: Mapping[str, Any] | None = None


def plan_train(request: TrainRequest, config: TrainConfig, talk: Talk) -> TrainPlan:
    """Everything that can be known or refused without loading a model; this is what `--dry-run` shows.

    Raises:
        OutputExists: there is a folder under `request.out`.
        What `plan.make_plan` raises.
    """
    if request.out.exists():
        raise OutputExists(
            f"{request.out} is there already",
            str(request.out),
            "a draft that may have cost days is never overwritten",
            "choose another folder, or delete this one",
        )
    require_sinks(request.wandb)
    plan = make_plan(request.target, request.rows, config, request.init_from, request.held_out)
    _require_disk(request.out, plan, config)
    for note in plan.resolved.notes:
        talk.note(note)
    _say_costs(plan, talk)
    _say_held_out(plan, config, talk)
    if plan.vocabulary is not None:
        size, seen = len(plan.vocabulary.ids), plan.vocabulary.num_seen
        talk.line(f"draft vocabulary: {size} tokens cover {plan.vocabulary.coverage:.2%} of the supervised ones")
        if seen < size:
            talk.note(
                f"only {seen} distinct tokens are supervised; {size - seen} of the draft vocabulary are filled up"
            )
    return plan


def look_at_answers(request: TrainRequest, plan: TrainPlan, talk: Talk) -> AnswersCheck:
    """Load the target and see whether the rows' answers are its own; the last thing `--dry-run` does."""
    target = Target.load(request.target, _placement(request))
    return _check_answers(target, plan, talk)


def train(request: TrainRequest, config: TrainConfig, plan: TrainPlan, talk: Talk) -> Trained:
    """Train as planned and write the draft with its metrics; a rerun of a killed run goes on from its checkpoint.

    Raises:
        CheckpointForeign, CheckpointDamaged: an unfinished run is there and cannot be gone on with.
        TrainingDiverged: a loss or gradient is not finite; the state before it is kept.
        OutputExists, WriteFailed: see `records.atomic`.
    """
    keep = _checkpointing(request, config, plan)
    placement = _placement(request)
    talk.line(f"loading the target {request.target.name} ({placement.dtype}, {placement.device})".replace("torch.", ""))
    target = Target.load(request.target, placement)
    draft = _draft(request, config, plan, target, talk)
    if request.init_only:
        _write(request.out, request, config, plan, draft, [])
        return Trained(plan=plan, metrics=[], out=request.out)
    if keep.state is None:
        _check_answers(target, plan, talk)
    trainer = Trainer(draft, target, config, lr=plan.resolved.lr, num_steps=len(plan.batches))
    outcome = _run(request, config, plan, trainer, keep, talk)
    kept = take_best(outcome, trainer) if config.keep == "best" else None
    _write(request.out, request, config, plan, draft, outcome.records, kept)
    shutil.rmtree(keep.folder, ignore_errors=True)
    return Trained(
        plan=plan,
        metrics=steps_of(outcome.records),
        out=request.out,
        held_out=held_out_of(outcome.records),
        kept=kept,
    )


def _run(
    request: TrainRequest, config: TrainConfig, plan: TrainPlan, trainer: Trainer, keep: Checkpointing, talk: Talk
) -> RunOutcome:
    """The optimiser steps; raises what stopped them, once the last good draft is kept."""
    held_out = None
    if plan.held_out is not None:
        held_out = HeldOut(trainer.target, plan.held_out.rows, config.held_out_draft_tokens, trainer.ranks)
    sinks = open_sinks(request.tensorboard, request.wandb, request.out.name, plan.as_document())
    watch = Watch(
        held_out=held_out,
        eval_every=plan.eval_every,
        log_every=config.log_every or (10 if trainer.target.device.type == "cuda" else 1),
        sinks=sinks,
    )
    try:
        outcome = run_steps(trainer, plan, keep, watch, talk)
    finally:
        for sink in sinks:
            sink.close()
    if outcome.error is not None:
        if keep.folder.exists():
            _write(keep.folder / LAST_GOOD, request, config, plan, trainer.draft, outcome.records)
            outcome.error.add_note(f"the draft before that step is kept: --init-from {keep.folder / LAST_GOOD}")
        raise outcome.error
    return outcome


def _say_costs(plan: TrainPlan, talk: Talk) -> None:
    costs = plan.costs
    talk.line(
        f"{costs.num_trained / 1e6:.1f} M trained parameters, {costs.flop_per_token / 1e9:.2f} GFLOP a token;"
        f" estimated peak memory {costs.peak_bytes / 2**30:.1f} GiB:"
    )
    for what, size in costs.memory_bytes.items():
        talk.line(f"  {size / 2**20:8.0f} MiB  {what}")


def _say_held_out(plan: TrainPlan, config: TrainConfig, talk: Talk) -> None:
    found = plan.held_out
    if found is None:
        if config.eval_every != 0:
            talk.note(
                "no held-out rows: the last draft is written, whether it accepts most or not; --held-out names some"
            )
        return
    skipped = f" ({found.num_skipped} without an answer left out)" if found.num_skipped else ""
    talk.line(
        f"held out: {len(found.rows)} rows of {found.path}{skipped}, {found.num_tokens} tokens, replayed every"
        f" {plan.eval_every} steps at {config.held_out_draft_tokens} drafts a pass; the {config.keep} draft is written"
    )


def _require_disk(out: Path, plan: TrainPlan, config: TrainConfig) -> None:
    """Raise `DiskTooSmall` before a run that could not be kept."""
    # A checkpoint is written beside the one before it.
    needed = plan.costs.draft_bytes + (2 * plan.costs.checkpoint_bytes if config.checkpoint_every_s else 0)
    folder = next(parent for parent in out.absolute().parents if parent.exists())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DiskTooSmall(
            f"the disk has {free / 2**30:.1f} GiB free, the run needs {needed / 2**30:.1f}",
            str(folder),
            "two checkpoints and the draft must fit at once",
            "free some space, choose another --out, or give --checkpoint-every-s 0",
        )


def _check_answers(target: Target, plan: TrainPlan, talk: Talk) -> AnswersCheck:
    found = check_answers(target, plan.rows)
    talk.line(str(found))
    if found.is_foreign:
        talk.note("the draft will learn text that this target would not write; let the target answer the prompts")
    return found


def _checkpointing(request: TrainRequest, config: TrainConfig, plan: TrainPlan) -> Checkpointing:
    folder = resume_folder(request.out)
    if request.restart:
        shutil.rmtree(folder, ignore_errors=True)
    init_from = None
    if request.init_from is not None:
        files = sorted(p for p in request.init_from.glob("*") if p.suffix in (".safetensors", ".bin", ".json"))
        init_from = fingerprint.of_files(files)
    run = run_identity(plan, config, fingerprint_weights(request.target), init_from)
    return Checkpointing(folder=folder, every_s=config.checkpoint_every_s, run=run, state=read_state(folder, run))


def _placement(request: TrainRequest) -> Placement:
    placement = place("float32", request.device)
    if request.dtype == "auto":
        return place("bfloat16" if placement.device.type == "cuda" else "float32", str(placement.device))
    return place(request.dtype, str(placement.device))


def _draft(request: TrainRequest, config: TrainConfig, plan: TrainPlan, target: Target, talk: Talk) -> Eagle3Draft:
    """The draft before the first step, fp32, in training mode."""
    embedding, head = target.parts.embedding, target.parts.head
    if request.init_from is not None:
        draft = load_draft(
            request.init_from,
            Placement(torch.float32, target.device),
            target_spec=plan.target,
            target_embedding=embedding,
            target_head=head,
            talk=talk,
        )
        return _frozen(draft, config).train()
    assert plan.vocabulary is not None, "a new draft has a new vocabulary"
    draft = Eagle3Draft(plan.spec, target_embedding=embedding, target_head=head).to(target.device)
    draft.set_vocab_map(torch.tensor(plan.vocabulary.ids, device=target.device))
    initialise(draft, target, config.seed)
    return _frozen(draft, config).train()


def _frozen(draft: Eagle3Draft, config: TrainConfig) -> Eagle3Draft:
    if config.freeze_head and draft.lm_head is not None:
        draft.lm_head.requires_grad_(False)
    return draft


def _write(
    out: Path,
    request: TrainRequest,
    config: TrainConfig,
    plan: TrainPlan,
    draft: Eagle3Draft,
    records: Sequence[Mapping[str, Any]],
    kept: Mapping[str, Any] | None = None,
) -> None:
    """The draft's folder: weights, config and sidecar by `save_draft`, metrics beside them; all or nothing.

    Args:
        kept: the replay that chose this draft; None for the last one.
    """
    steps = steps_of(records)
    written = kept or (steps[-1] if steps else {"step": 0, "tokens": 0})
    about = {
        "trained_by": f"eyas {__version__}",
        "rows": plan.as_document()["rows"],
        "template_options": dict(plan.rows.manifest.template_options),
        "target_weights": fingerprint_weights(request.target),
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
        if records:
            (aside / METRICS).write_text("".join(json.dumps(record) + "\n" for record in records))
