"""Acceptance by replay, costs by the clock, a prediction for every K, and the best ones measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from eyas.bench.batches import impossible_in_batches
from eyas.bench.bench_config import BenchConfig
from eyas.bench.bench_engine import bench_engine
from eyas.bench.compare import impossible
from eyas.bench.processor_wait import is_busy, refused
from eyas.decode.accept_length import Acceptance, pooled
from eyas.engine.open_engine import open_engine
from eyas.models.placement import Placement
from eyas.models.target import LiveStates, Target
from eyas.records.bench_record import BatchArm, BenchRecord
from eyas.records.eval_rows import EvalRow, require_rounds, write_eval_rows
from eyas.replay.eval_config import ReplayConfig
from eyas.replay.evaluate import load_for, prepare, rows_with_answers
from eyas.replay.replay import batch_tokens_on, replay_depths
from eyas.talk import Talk
from eyas.tune.prediction import Costs, Setting, best, break_even, predict
from eyas.tune.tune_config import TuneConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What was found.

    Attributes:
        settings: every K at every concurrency; the best ones with their measurement.
        chosen: concurrency -> K, 0 where plain decoding is faster.
        break_even: from which concurrency on speculation loses, in words.
        costs: what passes cost, as measured.
        num_rows, num_tokens: of the texts that were replayed.
        settings_of_run: options, device, versions.
    """

    settings: Sequence[Setting]
    chosen: Mapping[int, int]
    break_even: str
    costs: Sequence[Costs]
    num_rows: int
    num_tokens: int
    settings_of_run: Mapping[str, Any]

    def as_document(self) -> dict[str, Any]:
        """The object of schema eyas.tune/1."""
        return {
            "schema": "eyas.tune/1",
            "settings": [setting.as_document() for setting in self.settings],
            "chosen": {str(level): k for level, k in self.chosen.items()},
            "break_even": self.break_even,
            "costs": [
                {
                    "concurrency": c.concurrency,
                    "source": c.source,
                    "ms": {str(k): 1e3 * s for k, s in c.seconds.items()},
                }
                for c in self.costs
            ],
            "num_rows": self.num_rows,
            "num_tokens": self.num_tokens,
            "run": dict(self.settings_of_run),
        }


def tune(
    target_folder: Path, draft_path: Path, data: Sequence[Path], config: TuneConfig, *, cache: Path, talk: Talk
) -> Tuned:
    """Find K for each concurrency, on eyas' own engine.

    Args:
        target_folder: Hugging Face folder.
        draft_path: folder or file of the draft.
        data: JSONL files as `eyas eval` reads them, at least one; prompts are answered by the target first.
        config: options.
        cache: eyas' cache folder, for compiled kernels.
        talk: progress, and what was defaulted.

    Raises:
        FastPathUnsupported, BatchMemoryTooSmall: a concurrency above 1; see `bench_engine`.
        TextsDiffer: speculation changed a text.
        BaselineHandicapped: a speedup above the accept length.
        what reading the draft, the target and the rows raises (docs/errors.md).
    """
    options = ReplayConfig(
        num_draft_tokens=config.most,
        max_rows=config.max_rows,
        max_new_tokens=config.max_new_tokens,
        dtype=config.dtype,
        device=config.device,
        threads=config.threads,
    )
    placement = prepare(options)
    rows, _ = rows_with_answers(draft_path, target_folder, data, placement, options, talk, None)
    rows = [replace(row, response_ids=row.response_ids[: config.max_new_tokens]) for row in rows]
    require_rounds(rows, "eyas tune")
    with TemporaryDirectory(prefix="eyas-tune-") as folder:
        told = Path(folder) / "rows.jsonl"  # what is measured answers the prompts that were replayed, and no others
        write_eval_rows(rows, told)
        return _tuned(target_folder, draft_path, rows, told, config, placement, cache, talk)


def _tuned(
    target_folder: Path,
    draft_path: Path,
    rows: Sequence[EvalRow],
    told: Path,
    config: TuneConfig,
    placement: Placement,
    cache: Path,
    talk: Talk,
) -> Tuned:
    acceptances = _acceptances(target_folder, draft_path, rows, config.most, placement, talk)
    costs: list[Costs] = []
    settings: list[Setting] = []
    run: Mapping[str, Any] = {}
    for level in config.levels:
        if level == 1:
            costs.append(_costs_of_one(target_folder, draft_path, rows, config.most, placement, cache, talk))
        else:
            ends = sorted({1, config.most})
            measured = _measured(target_folder, draft_path, told, config, level, ends, cache, talk)
            costs.append(_costs_of_batch(measured, level))
        predicted = predict(acceptances, costs[-1])
        tried = [setting.num_draft_tokens for setting in best(predicted, config.confirm)]
        talk.line(f"concurrency {level}: measuring the best {len(tried)}, K = {', '.join(map(str, tried))}")
        record = _measured(target_folder, draft_path, told, config, level, tried, cache, talk)
        settings += [_confirmed(setting, record) for setting in predicted]
        run = record.settings
    return Tuned(
        settings=settings,
        chosen={level: _choice([s for s in settings if s.concurrency == level]) for level in config.levels},
        break_even=break_even(settings),
        costs=costs,
        num_rows=len(rows),
        num_tokens=sum(len(row.response_ids) for row in rows),
        settings_of_run=run,
    )


def _acceptances(
    folder: Path, draft_path: Path, rows: Sequence[EvalRow], most: int, placement: Placement, talk: Talk
) -> dict[int, Acceptance]:
    target = Target.load(folder, placement)
    draft = load_for(draft_path, folder, target, placement, talk)
    batch_tokens = batch_tokens_on(placement.device)
    found = replay_depths(LiveStates(target), draft, rows, range(1, most + 1), talk, batch_tokens=batch_tokens)
    return {k: pooled((Acceptance.of_rounds(row.accepted, k) for row in results), k) for k, results in found.items()}


def _costs_of_one(
    folder: Path, draft_path: Path, rows: Sequence[EvalRow], most: int, placement: Placement, cache: Path, talk: Talk
) -> Costs:
    """Rounds of every depth, timed in turns at the length of a typical text."""
    opened = open_engine(
        folder, draft_path, placement, cache=cache, num_threads=torch.get_num_threads(), talk=talk, rounds="auto"
    )
    row = sorted(rows, key=lambda row: len(row.prompt_ids) + len(row.response_ids))[len(rows) // 2]
    text = [*row.prompt_ids, *row.response_ids[: len(row.response_ids) // 2]]
    table = opened.engine.adaptive(text, most).costs
    return Costs(
        concurrency=1,
        seconds=dict(enumerate(table.round_s)),
        source=f"rounds of every depth at context length {len(text)}, prompts not counted",
    )


def _measured(
    folder: Path,
    draft_path: Path,
    rows: Path,
    config: TuneConfig,
    level: int,
    depths: Sequence[int],
    cache: Path,
    talk: Talk,
) -> BenchRecord:
    bench = BenchConfig(
        num_draft_tokens=",".join(map(str, sorted(depths))),
        batch="" if level == 1 else str(level),
        repeats=config.repeats,
        max_new_tokens=config.max_new_tokens,
        dtype=config.dtype,
        device=config.device,
        threads=config.threads,
    )
    record = bench_engine(folder, draft_path, [rows], bench, cache=cache, talk=talk)
    if (refusal := impossible(record.comparisons) or impossible_in_batches(record.batches)) is not None:
        waited = record.settings["processor_wait"]
        if not is_busy(waited):
            raise refusal
        talk.note(refused(refusal, waited))
    return record


def _arms(record: BenchRecord) -> dict[int, BatchArm]:
    return {arm.num_draft_tokens: arm for arm in record.batches[0].arms}


def _costs_of_batch(record: BenchRecord, level: int) -> Costs:
    """Seconds per pass over a whole run of each arm: its prompts are in them."""
    seconds = {k: arm.num_tokens / arm.tokens_per_s.median / arm.steps for k, arm in _arms(record).items()}
    return Costs(concurrency=level, seconds=seconds, source="whole runs with the shallowest and the deepest draft")


def _confirmed(setting: Setting, record: BenchRecord) -> Setting:
    """The setting with its measurement, if it is among those that were measured."""
    k = setting.num_draft_tokens
    found = next((c for c in record.comparisons if c.num_draft_tokens == k and c.set == "all"), None)
    arm = found or (_arms(record).get(k) if record.batches else None)
    if arm is None:
        return setting
    return replace(setting, measured=arm.speedup, measured_low=arm.speedup_low, measured_high=arm.speedup_high)


def _choice(settings: Sequence[Setting]) -> int:
    """The fastest measured K; 0 where none is faster than plain."""
    measured = [setting for setting in settings if setting.measured is not None]
    winner = max(measured, key=lambda setting: setting.measured or 0.0)
    return winner.num_draft_tokens if (winner.measured or 0.0) > 1 else 0
