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
from eyas.records.checkpoint import METRICS, resume_folder
from eyas.talk import Talk
from eyas.train.answers import AnswersCheck, check_answers
from eyas.train.checkpoint import read_state
from eyas.train.config import TrainConfig
from eyas.train.initialise import initialise
from eyas.train.plan import TrainPlan, make_plan, run_identity
from eyas.train.run import Checkpointing, run_steps
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
    """

    target: Path
    rows: Path
    out: Path
    init_from: Path | None = None
    device: str = "auto"
    dtype: str = "auto"
    init_only: bool = False
    restart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The outcome: the plan, and the metrics of all steps (none with `init_only`)."""

    plan: TrainPlan
    metrics: Sequence[Mapping[str, Any]]
    out: Path


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
    plan = make_plan(request.target, request.rows, config, request.init_from)
    for note in plan.resolved.notes:
        talk.note(note)
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
        TrainingDiverged: a loss or gradient is not finite.
        OutputExists, WriteFailed: see `records.atomic`.
    """
    keep = _checkpointing(request, config, plan)
    placement = _placement(request)
    talk.line(f"loading the target {request.target.name} ({placement.dtype}, {placement.device})".replace("torch.", ""))
    target = Target.load(request.target, placement)
    draft = _draft(request, config, plan, target, talk)
    metrics: Sequence[Mapping[str, Any]] = []
    if not request.init_only:
        if keep.state is None:
            _check_answers(target, plan, talk)
        trainer = Trainer(draft, target, config, lr=plan.resolved.lr, num_steps=len(plan.batches))
        metrics = run_steps(trainer, plan, keep, talk)
    _write(request, config, plan, draft, metrics)
    shutil.rmtree(keep.folder, ignore_errors=True)
    return Trained(plan=plan, metrics=metrics, out=request.out)


def _say_costs(plan: TrainPlan, talk: Talk) -> None:
    costs = plan.costs
    talk.line(
        f"{costs.num_trained / 1e6:.1f} M trained parameters, {costs.flop_per_token / 1e9:.2f} GFLOP a token;"
        f" estimated peak memory {costs.peak_bytes / 2**30:.1f} GiB:"
    )
    for what, size in costs.memory_bytes.items():
        talk.line(f"  {size / 2**20:8.0f} MiB  {what}")


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
    request: TrainRequest,
    config: TrainConfig,
    plan: TrainPlan,
    draft: Eagle3Draft,
    metrics: Sequence[Mapping[str, Any]],
) -> None:
    """The draft's folder: weights, config and sidecar by `save_draft`, metrics beside them; all or nothing."""
    about = {
        "trained_by": f"eyas {__version__}",
        "rows": plan.as_document()["rows"],
        "template_options": dict(plan.rows.manifest.template_options),
        "target_weights": fingerprint_weights(request.target),
        "options": asdict(config),
        "lr": plan.resolved.lr,
        "batch_tokens": plan.resolved.batch_tokens,
        "steps": len(metrics),
        "tokens": metrics[-1]["tokens"] if metrics else 0,
    }
    with atomic_folder(request.out) as aside:
        save_draft(draft, aside, target_spec=plan.target, about=about, replace_existing=True)
        for weights in aside.glob("*.safetensors"):
            weights.chmod(0o644)  # safetensors makes it readable by the owner only
        if metrics:
            (aside / METRICS).write_text("".join(json.dumps(record) + "\n" for record in metrics))
