"""The records of a run, one per optimiser step and one per replay of the held-out rows, and the sinks that get them.

Steps are read from the device in windows of `log_every`; each record of a window carries the window's rates. Sinks are
`metrics.jsonl` always, and TensorBoard or wandb on request.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from eyas.errors import EnvironmentMissing
from eyas.records.eval_record import Figures
from eyas.talk import Progress
from eyas.train.optimise.step_outcome import PendingStep, StepOutcome, read_steps
from eyas.train.optimise.trainer import DataWait
from eyas.train.preflight.hardware import peak_flops, peak_memory_bytes

_NOT_SHOWN = {"schema", "step"}


class Sink(Protocol):
    """Takes records while the run goes on."""

    def write(self, record: Mapping[str, Any]) -> None:
        """One record of metrics.jsonl, of any kind."""

    def close(self) -> None:
        """The run is over."""

    def runs(self) -> Mapping[str, str]:
        """Project -> id of the run there, for `open_sinks` of a resumed run; may be empty."""


def open_sinks(
    tensorboard: Path | None, wandb: str | None, name: str, about: Mapping[str, Any], known: Mapping[str, str]
) -> list[Sink]:
    """The sinks asked for.

    Args:
        tensorboard: folder for event files.
        wandb: project.
        name: of the run.
        about: its plan, as JSON has it.
        known: project -> run id of wandb, to resume; another project gets a new run.

    Raises:
        EnvironmentMissing: wandb refuses to start a run (not logged in).
    """
    sinks: list[Sink] = []
    if tensorboard is not None:
        sinks.append(_TensorBoard(tensorboard))
    if wandb is not None:
        sinks.append(_Wandb(wandb, name, about, known.get(wandb)))
    return sinks


def scalars_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Tag -> value: numbers as they are, lists as `name/step_j`; held-out records under `held_out/`."""
    prefix = "held_out/" if "held-out" in record["schema"] else ""
    scalars: dict[str, float] = {}
    for name, value in record.items():
        if name in _NOT_SHOWN or isinstance(value, str | bool):
            continue
        parts: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
        for j, part in enumerate(parts):
            tag = f"{name}/step_{j}" if isinstance(value, list | tuple) else name
            if isinstance(part, int | float):
                scalars[prefix + tag] = float(part)
    return scalars


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def write(self, record: Mapping[str, Any]) -> None:
        for tag, value in scalars_of(record).items():
            self._writer.add_scalar(tag, value, record["step"])
        self._writer.flush()  # a run that is killed has shown all its steps

    def close(self) -> None:
        self._writer.close()

    def runs(self) -> Mapping[str, str]:
        return {}


class _Wandb:
    def __init__(self, project: str, name: str, about: Mapping[str, Any], run_id: str | None) -> None:
        import wandb  # type: ignore[import-not-found, unused-ignore]

        # "allow": a run that was deleted there meanwhile is started again under its id.
        again = {} if run_id is None else {"id": run_id, "resume": "allow"}
        self._project = project
        try:
            self._run: Any = wandb.init(project=project, name=name, config=dict(about), **again)
        except wandb.Error as error:
            raise EnvironmentMissing(
                "wandb does not start a run",
                f"--wandb {project}",
                str(error),
                "run `wandb login`, set WANDB_MODE=offline, or leave --wandb out: metrics.jsonl is always written",
            ) from error

    def write(self, record: Mapping[str, Any]) -> None:
        self._run.log(scalars_of(record), step=record["step"])

    def close(self) -> None:
        self._run.finish()

    def runs(self) -> Mapping[str, str]:
        return {self._project: str(self._run.id)}


METRICS_SCHEMA = "eyas.metrics/1"
HELD_OUT_SCHEMA = "eyas.held-out/1"
WRITTEN_SCHEMA = "eyas.written/1"  # the draft's file, replayed
_CLOCK = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedometer:
    """Computes how well the device is used.

    Attributes:
        flop_per_token: of training, estimated from shapes.
        peak_flops: of all devices together, FLOP/s, or None.
        device: of this rank.
    """

    flop_per_token: int
    peak_flops: float | None
    device: torch.device

    @classmethod
    def of(cls, device: torch.device, flop_per_token: int, num_devices: int) -> "Speedometer":
        """For `num_devices` devices like this one."""
        peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
        return cls(flop_per_token=flop_per_token, peak_flops=peak and peak * num_devices, device=device)

    def mfu(self, tokens_per_s: float) -> float | None:
        """Share of the peak rate that the estimated arithmetic takes; None without a known peak."""
        return None if self.peak_flops is None else self.flop_per_token * tokens_per_s / self.peak_flops


class MetricsJournal:
    """Collects steps and turns them into records.

    Args:
        records: of the run so far, steps and replays; extended in place.
        speedometer: of the devices.
        sinks: get each new record.
        bar: progress of the run, in tokens.
        data_wait: how long the device waited for rows.
    """

    def __init__(
        self,
        records: list[dict[str, Any]],
        speedometer: Speedometer,
        sinks: Sequence[Sink],
        bar: Progress,
        data_wait: DataWait,
    ) -> None:
        self.records = records
        self._speedometer, self._sinks, self._bar, self._data_wait = speedometer, sinks, bar, data_wait
        steps = steps_of(records)
        self._last: Mapping[str, Any] = steps[-1] if steps else {"tokens": 0, "seconds": 0.0}
        self._start = _CLOCK() - self._last["seconds"]
        self._pending: list[tuple[PendingStep, int]] = []
        self._begin_window(_CLOCK())
        held_out = held_out_of(records)
        self._accept = f"accept {held_out[-1]['accept_length']:.2f}" if held_out else ""
        bar.advance(self.num_tokens)

    @property
    def num_tokens(self) -> int:
        """Trained on, as of the last record."""
        num_tokens: int = self._last["tokens"]
        return num_tokens

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Around a replay or a checkpoint, which the rates leave out. No step may be pending."""
        assert not self._pending, "flush before a pause"
        yield
        self._begin_window(_CLOCK())

    def add(self, step: PendingStep, num_tokens: int) -> None:
        """A step that was started on `num_tokens` tokens."""
        self._pending.append((step, num_tokens))

    def flush(self) -> Exception | None:
        """Wait for the added steps and record them.

        Returns:
            The error of the first step that was not finite (`TrainingDiverged`); the steps before it are recorded.
        """
        outcomes, error = read_steps([step for step, _ in self._pending])
        now, sizes = _CLOCK(), [num for _, num in self._pending]
        span = max(now - self._window_start, 1e-9)
        rate = sum(sizes) / span
        rates = {
            "tokens_per_s": round(rate, 1),
            "mfu": self._speedometer.mfu(rate),
            "peak_memory_bytes": peak_memory_bytes(self._speedometer.device),
            "data_wait_share": round(min(1.0, self._data_wait.take() / span), 4),
        }
        done = 0
        for outcome, (step, num) in zip(outcomes, self._pending, strict=False):
            done += num
            seconds = self._window_start - self._start + span * done / sum(sizes)
            self._last = _record(step, self.num_tokens + num, seconds, outcome) | rates
            self._record(self._last)
        self._pending.clear()
        self._begin_window(now)
        if outcomes:
            self._show(done, rate)
        return error

    def add_held_out(self, step: int, figures: Figures, seconds: float) -> Mapping[str, Any]:
        """Record a replay after `step` steps, which took `seconds`; gives the record."""
        best = best_of(self.records)
        record = {
            "schema": HELD_OUT_SCHEMA,
            "step": step,
            "tokens": self.num_tokens,
            **replay_record(figures),
            "is_best": best is None or figures.accept_length > best["accept_length"],
            "seconds": round(seconds, 3),
        }
        self._accept = f"accept {figures.accept_length:.2f}"
        self._record(record)
        return record

    def _begin_window(self, now: float) -> None:
        self._window_start = now
        self._data_wait.take()

    def _record(self, record: Mapping[str, Any]) -> None:
        self.records.append(dict(record))
        for sink in self._sinks:
            sink.write(record)

    def _show(self, num_tokens: int, rate: float) -> None:
        record = self._last
        accuracy = record["accuracy"][0]
        shown = "–" if accuracy is None else f"{accuracy:.0%}"
        mfu = "" if record["mfu"] is None else f"MFU {record['mfu']:.0%}"
        parts = [f"loss {record['loss']:.3f}", f"step-0 accuracy {shown}", self._accept, f"{rate:.0f} tok/s", mfu]
        self._bar.say("  ".join(part for part in parts if part))
        self._bar.advance(num_tokens)


def replay_record(figures: Figures) -> dict[str, Any]:
    """The figures of a replay as fields of its record."""
    return {
        "accept_length": figures.accept_length,
        "accept_length_request_mean": figures.accept_length_request_mean,
        "per_position": list(figures.per_position),
        "rounds": figures.rounds,
        "num_requests": figures.num_requests,
        "num_draft_tokens": figures.num_draft_tokens,
    }


def steps_of(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The records of optimiser steps."""
    return [record for record in records if record["schema"] == METRICS_SCHEMA]


def held_out_of(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The records of replays."""
    return [record for record in records if record["schema"] == HELD_OUT_SCHEMA]


def best_of(records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The replay with the largest accept length, the earliest of equals; None without a replay."""
    return max(held_out_of(records), key=lambda record: record["accept_length"], default=None)


def _record(step: PendingStep, num_tokens: int, seconds: float, outcome: StepOutcome) -> dict[str, Any]:
    return {
        "schema": METRICS_SCHEMA,
        "step": step.step + 1,
        "tokens": num_tokens,
        "padding_share": round(step.padding_share, 4),
        "seconds": round(seconds, 3),
        "loss": outcome.loss,
        "lr": outcome.lr,
        "grad_norm": outcome.grad_norm,
        **outcome.counts.as_record(),
    }
