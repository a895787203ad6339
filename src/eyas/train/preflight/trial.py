"""A few real steps on a draft that is then discarded: the speed and memory of a run, measured before it starts."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eyas.talk import Talk
from eyas.train.optimise.trainer import Trainer
from eyas.train.preflight.hardware import peak_memory_bytes
from eyas.train.preflight.train_plan import TrainPlan
from eyas.train.rows.batch_plan import Batch

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

    def as_document(self) -> dict[str, Any]:
        """The trial as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        memory = f"peak memory {self.peak_memory_bytes / 2**30:.1f} GiB"
        steps = f"{self.num_steps} trial step{'s' if self.num_steps > 1 else ''}"
        return f"measured on {steps}: {self.tokens_per_s:.0f} tokens/s, {duration(self.seconds)} for the run, {memory}"


def try_steps(trainer: Trainer, plan: TrainPlan) -> Trial:
    """Train on the run's largest batches; the draft of `trainer` is spoilt by it."""
    device = trainer.target.device
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
