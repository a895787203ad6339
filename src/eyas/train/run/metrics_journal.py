"""The records of a run: one per optimiser step and one per replay of the held-out rows, with how fast it went.

Steps are read from the device in windows of `log_every`; each record of a window carries the window's rates.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from eyas.records.eval_record import Figures
from eyas.talk import Progress
from eyas.train.optimise.data_wait import DataWait
from eyas.train.optimise.step_outcome import PendingStep, StepOutcome, read_steps
from eyas.train.preflight.hardware import peak_flops, peak_memory_bytes
from eyas.train.run.sinks import Sink

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
