"""What a run is told before it costs anything: sizes, memory, disk, mask, RoPE; with the target loaded, its text."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eyas.errors import ExitCode, EyasError
from eyas.models.target import Target
from eyas.talk import Talk
from eyas.train.config import TrainConfig
from eyas.train.optimise.trainer import Trainer
from eyas.train.preflight.answers_check import AnswersCheck, check_answers
from eyas.train.preflight.hardware import peak_flops
from eyas.train.preflight.starting_draft import starting_draft
from eyas.train.preflight.teacher_check import TeacherCheck, check_teacher
from eyas.train.preflight.train_plan import TrainPlan, make_plan
from eyas.train.preflight.trial import Trial, duration, say_first_step, try_steps
from eyas.train.request import TrainRequest, require_startable
from eyas.train.rows.mask_statistics import mask_statistics

_MASK_ROWS = 1000
_USUAL_MFU = 0.35


class DiskTooSmall(EyasError):
    """Checkpoint and draft would not fit on the disk."""

    code = "disk-too-small"
    exit_code = ExitCode.ENVIRONMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What `--dry-run` knows besides the plan: all of it from the loaded target."""

    answers: AnswersCheck
    teacher: TeacherCheck
    trial: Trial

    def as_document(self) -> Mapping[str, Any]:
        """The examination as a JSON object."""
        return {
            "answers": self.answers.as_document(),
            "teacher": self.teacher.as_document(),
            "trial": self.trial.as_document(),
        }


def plan_train(request: TrainRequest, config: TrainConfig, talk: Talk) -> TrainPlan:
    """Everything that can be known or refused without loading a model.

    Raises:
        DiskTooSmall: checkpoints and draft would not fit.
        What `request.require_startable` raises.
        PlacementInvalid, EnvironmentMissing: the device is not there.
        What `plan.make_plan` raises.
    """
    require_startable(request)
    device_type = request.placement().device.type
    plan = make_plan(request.target, request.rows, config, request.init_from, request.held_out, device_type)
    disk = _require_disk(request.out, plan, config)
    for note in plan.resolved.notes:
        talk.note(note)
    _say_vocabulary(plan, talk)
    _say_text(plan, config, talk)
    _say_costs(plan, talk)
    talk.line(disk)
    _say_held_out(plan, config, talk)
    return plan


def check_target(
    target: Target, request: TrainRequest, plan: TrainPlan, talk: Talk
) -> tuple[AnswersCheck, TeacherCheck]:
    """Whether the rows' answers are this target's own, and whether the teacher is the target.

    Raises:
        TeacherWrong: the recomputed logits are not the model's.
    """
    teacher = check_teacher(target, plan.rows)
    talk.line(str(teacher))
    answers = check_answers(target, plan.rows, talk)
    talk.line(str(answers))
    if answers.is_foreign:
        talk.note(
            "the draft will learn text that this target would not write; let the target answer the prompts:"
            f" eyas prepare --target {request.target} --data F --regenerate --out {request.rows}-own"
        )
    return answers, teacher


def examine(request: TrainRequest, config: TrainConfig, plan: TrainPlan, talk: Talk) -> Examined:
    """Load the target, look at text and teacher, try a few steps; the last thing `--dry-run` does. Writes nothing."""
    target = Target.load(request.target, request.placement())
    answers, teacher = check_target(target, request, plan, talk)
    draft = starting_draft(request, config, plan, target, talk)
    trainer = Trainer(draft, target, config, lr=plan.resolved.lr, num_steps=len(plan.batches))
    say_first_step(talk)
    trial = try_steps(trainer, plan)
    talk.line(str(trial))
    return Examined(answers=answers, teacher=teacher, trial=trial)


def say_time(plan: TrainPlan, device: torch.device, num_devices: int, talk: Talk) -> None:
    """How long the run may take, by its arithmetic, where the device's peak is known."""
    peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    if peak is None:
        talk.line("time: the progress line says how long is left, once a step is done (`--dry-run` measures it first)")
        return
    seconds = plan.num_tokens * plan.costs.flop_per_token / (peak * num_devices * _USUAL_MFU)
    talk.line(
        f"time: about {duration(seconds)}, estimated from the arithmetic at {_USUAL_MFU:.0%} of the peak of"
        f" {num_devices} x {torch.cuda.get_device_name(device)}; the progress bar measures it"
    )


def _say_vocabulary(plan: TrainPlan, talk: Talk) -> None:
    if plan.vocabulary is None:
        return
    size, seen = len(plan.vocabulary.ids), plan.vocabulary.num_seen
    talk.line(f"draft vocabulary: {size} tokens cover {plan.vocabulary.coverage:.2%} of the supervised ones")
    if seen < size:
        talk.note(f"only {seen} distinct tokens are supervised; {size - seen} of the draft vocabulary are filled up")


def _say_text(plan: TrainPlan, config: TrainConfig, talk: Talk) -> None:
    num = min(len(plan.rows), _MASK_ROWS)
    mask = mask_statistics((plan.rows[i] for i in range(num)), config.ttt_steps)
    talk.line(f"{mask} (first {num} rows)" if num < len(plan.rows) else str(mask))
    if mask.num_without:
        talk.note(f"{mask.num_without} of {num} rows have no supervised token: they cost time and teach nothing")
    rope, longest = plan.spec.rope, plan.rows.manifest.longest
    scaling = "no scaling" if not rope.scaling else ", ".join(f"{k} {v}" for k, v in rope.scaling.items())
    talk.line(
        f"RoPE of the draft: theta {rope.theta:g}, {scaling}; it will have seen positions up to {longest} of the"
        f" {plan.spec.max_position_embeddings} that its config allows"
    )


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


def _require_disk(out: Path, plan: TrainPlan, config: TrainConfig) -> str:
    """What the run needs of the disk, in words; raises `DiskTooSmall` before a run that could not be kept."""
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
    what = "two checkpoints and the draft" if config.checkpoint_every_s else "the draft"
    return (
        f"disk: {needed / 2**20:.0f} MiB for {what}, {plan.costs.draft_bytes / 2**20:.0f} MiB of it for good;"
        f" {free / 2**30:.1f} GiB are free"
    )
