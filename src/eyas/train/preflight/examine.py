"""What is said before a run costs anything: sizes, memory, disk, mask, RoPE; with the target loaded, its answers."""

import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from eyas.data.text.tokenise import TokenRow
from eyas.errors import ExitCode, EyasError
from eyas.talk import Talk
from eyas.train.config import TrainConfig
from eyas.train.optimise.teaching import Teaching
from eyas.train.optimise.trainer import Trainer
from eyas.train.preflight.hardware import peak_flops, peak_memory_bytes
from eyas.train.preflight.open_teaching import open_teaching
from eyas.train.preflight.starting_draft import starting_draft
from eyas.train.preflight.target_checks import AnswersCheck, TeacherCheck, check_answers, check_teacher
from eyas.train.preflight.train_plan import TrainPlan, make_plan
from eyas.train.request import TrainRequest, require_startable
from eyas.train.rows.batch_plan import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskStatistics:
    """Statistics of the mask over the rows checked.

    Attributes:
        num_rows, num_tokens: checked.
        supervised_share: of the tokens.
        least_share, most_share: over rows.
        num_without: rows without a supervised token.
        mean_stretch: mean length of a run of supervised tokens, an answer; 0 without any.
        first_step_share, last_step_share: of the supervised tokens, those that step 0 and the last unrolled step learn
            from (the others are too close to the start of their row).
    """

    num_rows: int
    num_tokens: int
    supervised_share: float
    least_share: float
    most_share: float
    num_without: int
    mean_stretch: float
    first_step_share: float
    last_step_share: float

    def __str__(self) -> str:
        return (
            f"mask: {self.supervised_share:.0%} of the tokens supervised (rows {self.least_share:.0%} …"
            f" {self.most_share:.0%}; {self.num_without} without any), answers of {self.mean_stretch:.0f} tokens;"
            f" step 0 learns from {self.first_step_share:.1%} of them, the last step from {self.last_step_share:.1%}"
        )


def mask_statistics(rows: Iterable[TokenRow], ttt_steps: int) -> MaskStatistics:
    """Statistics of `rows` (at least one)."""
    shares, stretches = [], []
    num_tokens = num_supervised = first = last = 0
    for row in rows:
        flags = row.is_supervised
        num = sum(flags)
        num_tokens += len(flags)
        num_supervised += num
        first += sum(flags[2:])
        last += sum(flags[1 + ttt_steps :])
        shares.append(num / max(1, len(flags)))
        stretches += [len(list(run)) for is_supervised, run in groupby(flags) if is_supervised]
    assert shares, "a plan has rows"
    return MaskStatistics(
        num_rows=len(shares),
        num_tokens=num_tokens,
        supervised_share=num_supervised / max(1, num_tokens),
        least_share=min(shares),
        most_share=max(shares),
        num_without=sum(share == 0 for share in shares),
        mean_stretch=sum(stretches) / max(1, len(stretches)),
        first_step_share=first / max(1, num_supervised),
        last_step_share=last / max(1, num_supervised),
    )


_NUM_STEPS = 3  # the first compiles and allocates


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Measured speed and memory.

    Attributes:
        num_steps: number of timed steps; the first is timed only if it is the only one.
        tokens_per_s: of the timed steps.
        seconds: for the whole run at that speed, without replays and checkpoints.
        peak_memory_bytes: with the largest batch; of the GPU, or resident memory of this process on a CPU.
    """

    num_steps: int
    tokens_per_s: float
    seconds: float
    peak_memory_bytes: int

    def __str__(self) -> str:
        memory = f"peak memory {self.peak_memory_bytes / 2**30:.1f} GiB"
        steps = f"{self.num_steps} trial step{'s' if self.num_steps > 1 else ''}"
        return f"measured on {steps}: {self.tokens_per_s:.0f} tokens/s, {duration(self.seconds)} for the run, {memory}"


def try_steps(trainer: Trainer, plan: TrainPlan) -> Trial:
    """Train on the run's largest batches; the draft of `trainer` is spoilt by it."""
    device = trainer.device
    batches = _largest(plan.batches)
    num_tokens, start = 0, time.monotonic()
    for number, batch in enumerate(batches):
        trainer.train_step([plan.rows[row] for row in batch.rows], number)
        if number == 0 and len(batches) > 1:
            start = time.monotonic()
        else:
            num_tokens += batch.num_tokens
    rate = num_tokens / max(time.monotonic() - start, 1e-9)
    return Trial(
        num_steps=max(1, len(batches) - 1),
        tokens_per_s=rate,
        seconds=plan.num_tokens / rate,
        peak_memory_bytes=peak_memory_bytes(device),
    )


def say_first_step(talk: Talk) -> None:
    """Announce the first step, which is silent for a while."""
    talk.line("first step: it takes longest (memory is allocated; on a GPU, kernels are compiled)")


def duration(seconds: float) -> str:
    """Such as "3 h 20 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _largest(batches: Sequence[Batch]) -> list[Batch]:
    return sorted(batches, key=lambda batch: -batch.num_tokens)[:_NUM_STEPS]


_MASK_ROWS = 1000
_USUAL_MFU = 0.35
_MEASURED_FROM = 50  # steps: a few more are then a small part of the run
_LEAST_STEP_S = 0.009  # of a micro-batch: SmolLM2 on an H200, benchmarks/train_step_h200_202611.md


class DiskTooSmall(EyasError):
    """The checkpoints and the draft do not fit on the disk."""

    code = "disk-too-small"
    exit_code = ExitCode.ENVIRONMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What `--dry-run` finds with the target loaded."""

    answers: AnswersCheck
    teacher: TeacherCheck | None
    trial: Trial

    def as_document(self) -> Mapping[str, Any]:
        """The examination as a JSON object."""
        return {
            "answers": self.answers.as_document(),
            "teacher": self.teacher and asdict(self.teacher),
            "trial": asdict(self.trial),
        }


def plan_train(request: TrainRequest, config: TrainConfig, talk: Talk, *, device_type: str | None = None) -> TrainPlan:
    """Plan a run and say what it will cost; refuse what cannot work. Loads no model.

    Args:
        device_type: "cpu" or "cuda": plan for such a device, which need not exist here; None for the request's own.

    Raises:
        DiskTooSmall: checkpoints and draft would not fit.
        What `request.require_startable` raises.
        PlacementInvalid, EnvironmentMissing: the device does not exist.
        What `plan.make_plan` raises.
    """
    require_startable(request)
    device_type = device_type or request.placement().device.type
    plan = make_plan(request, config, device_type)
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
    teaching: Teaching, request: TrainRequest, plan: TrainPlan, talk: Talk
) -> tuple[AnswersCheck, TeacherCheck | None]:
    """Check that the target wrote the rows' answers, and, where it is in this process, that the teacher is the target.

    Raises:
        TeacherWrong: the recomputed logits differ from the model's.
    """
    if (teacher := check_teacher(teaching, plan.rows)) is not None:
        talk.line(str(teacher))
    answers = check_answers(teaching, plan.rows, talk)
    talk.line(str(answers))
    if answers.is_foreign:
        talk.note(
            "the draft will learn text that this target would not write; let the target answer the prompts with"
            f" eyas prepare --target {request.target} --data F --regenerate --out {request.rows or 'ROWS'}-own"
        )
    return answers, teacher


def examine(request: TrainRequest, config: TrainConfig, plan: TrainPlan, talk: Talk) -> Examined:
    """Load the target, check answers and teacher, and time a few steps; writes nothing."""
    teaching = open_teaching(request, config, plan, request.placement(), talk)
    answers, teacher = check_target(teaching, request, plan, talk)
    draft = starting_draft(request, config, plan, teaching.parts, talk)
    trainer = Trainer(draft, teaching, config, lr=plan.resolved.lr, num_steps=len(plan.batches))
    say_reference(plan, trainer, talk)
    say_first_step(talk)
    trial = try_steps(trainer, plan)
    talk.line(str(trial))
    return Examined(answers=answers, teacher=teacher, trial=trial)


def say_time(plan: TrainPlan, trainer: Trainer, talk: Talk) -> None:
    """Say how long the run will take, measured on steps whose gradients are dropped. All ranks call it together."""
    if len(plan.batches) < _MEASURED_FROM:
        talk.line("time: the progress line says how long is left, after the first step")
        return
    if trainer.teaching.feed is not None and not plan.stored:
        talk.line("time: the progress line says how long is left, once the servers compute ahead of the trainer")
        return
    typical = sorted(plan.batches, key=lambda batch: batch.num_tokens)[len(plan.batches) // 2]
    rows = [plan.rows[row] for row in typical.rows]
    is_cuda = trainer.device.type == "cuda"
    if is_cuda:  # kernels are compiled, and memory is allocated
        talk.line("time: measuring a step (kernels are compiled first)")
        for _ in range(2):
            trainer.time_step(rows)
    taken = min(trainer.time_step(rows) for _ in range(3 if is_cuda else 1))
    talk.line(
        f"time: about {duration(taken * len(plan.batches))} for {len(plan.batches)} steps, measured on one of"
        f" {typical.num_tokens} tokens; replays and checkpoints take their own time"
    )


def say_time_elsewhere(plan: TrainPlan, config: TrainConfig, talk: Talk) -> dict[str, float]:
    """Say how long the run may take on common GPUs, which need not exist here; gives name -> seconds."""
    micro_batches = sum(-(-batch.num_tokens // config.micro_batch_on("cuda")) for batch in plan.batches)
    seconds = {}
    for name in ("H200", "A100", "L40S"):
        arithmetic = plan.num_tokens * plan.costs.flop_per_token / ((peak_flops(name) or 1.0) * _USUAL_MFU)
        seconds[name] = max(arithmetic, micro_batches * _LEAST_STEP_S)
    shown = ", ".join(f"{duration(value)} on one {name}" for name, value in seconds.items())
    talk.line(f"time: about {shown} (arithmetic at {_USUAL_MFU:.0%} of the peak, at least {_LEAST_STEP_S:g} s a step)")
    return seconds


def say_reference(plan: TrainPlan, trainer: Trainer, talk: Talk) -> None:
    """Compare the fused step with the modules on the first row, and say so.

    Raises:
        FusedStepDiffers: see `step.reference_check`.
    """
    difference = trainer.require_reference(plan.rows[plan.batches[0].rows[0]])
    if difference is not None:
        talk.line(f"fused step: as the plain modules on one row (largest relative difference {difference:.1g})")


def _say_vocabulary(plan: TrainPlan, talk: Talk) -> None:
    if plan.vocabulary is None:
        return
    size, seen = len(plan.vocabulary.ids), plan.vocabulary.num_seen
    talk.line(f"draft vocabulary: {size} tokens cover {plan.vocabulary.coverage:.2%} of the supervised ones")
    if seen < size:
        talk.note(
            f"only {seen} distinct tokens are supervised; the draft vocabulary takes {size - seen} more, the lowest ids"
        )


def _say_text(plan: TrainPlan, config: TrainConfig, talk: Talk) -> None:
    num = min(len(plan.rows), _MASK_ROWS)
    mask = mask_statistics((plan.rows[i] for i in range(num)), config.ttt_steps)
    talk.line(f"{mask} (first {num} rows)" if num < len(plan.rows) else str(mask))
    if mask.num_without:
        talk.note(f"{mask.num_without} of {num} rows have no supervised token: they cost time and teach nothing")
    rope, longest = plan.spec.rope, plan.rows.manifest.longest
    scaling = "no scaling" if not rope.scaling else ", ".join(f"{k} {v}" for k, v in rope.scaling.items())
    talk.line(
        f"RoPE of the draft: theta {rope.theta:g}, {scaling}; it will be trained on positions up to {longest} of the"
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
                "no held-out rows: the last draft is written, not the one with the largest accept length; --held-out"
                " names a file of such rows"
            )
        return
    skipped = f" ({found.num_skipped} without an answer left out)" if found.num_skipped else ""
    talk.line(
        f"held out: {len(found.rows)} rows of {found.path}{skipped}, {found.num_tokens} tokens, replayed every"
        f" {plan.eval_every} steps at {config.held_out_draft_tokens} drafts a pass; the {config.keep} draft is written"
    )


def _require_disk(out: Path, plan: TrainPlan, config: TrainConfig) -> str:
    """The disk space that the run needs, as a line; raises `DiskTooSmall`."""
    # A checkpoint is written beside the one before it.
    needed = plan.costs.draft_bytes + (2 * plan.costs.checkpoint_bytes if config.checkpoint_every_s else 0)
    folder = next(parent for parent in out.absolute().parents if parent.exists())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DiskTooSmall(
            f"the disk has {free / 2**30:.1f} GiB free, the run needs {needed / 2**30:.1f}",
            str(folder),
            "two checkpoints and the draft must fit at the same time",
            "free some space, choose another --out, or give --checkpoint-every-s 0",
        )
    what = "two checkpoints and the draft" if config.checkpoint_every_s else "the draft"
    return (
        f"disk: {needed / 2**20:.0f} MiB for {what}, {plan.costs.draft_bytes / 2**20:.0f} MiB of it after the run;"
        f" {free / 2**30:.1f} GiB are free"
    )
