"""The stage of `eyas bench --batch`: opens target and draft for batches, measures, makes the record."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from eyas.bench.arm import BenchPrompt
from eyas.bench.batches import BatchBenchSettings, BatchJudge, impossible_in_batches, run_batches, where_it_pays
from eyas.bench.bench_config import BenchConfig
from eyas.bench.engine_arm import EngineOracle
from eyas.bench.identity import MAX_LOGIT_GAP
from eyas.bench.measure import ALL
from eyas.bench.run_bench import Subject, parting, repetition_notes
from eyas.decode.repetition import repetition_share
from eyas.engine.batches.generator import Completion
from eyas.engine.batches.speculate import open_batch_pair
from eyas.engine.cuda_graphs import why_not_captured
from eyas.engine.engine import Engine
from eyas.engine.llama.llama_target import LlamaTarget
from eyas.models.placement import Placement
from eyas.records.bench_record import BatchFigures, BenchRecord
from eyas.talk import Talk


def bench_in_batches(
    target_folder: Path,
    draft_path: Path,
    prompts: Sequence[BenchPrompt],
    config: BenchConfig,
    placement: Placement,
    subject: Subject,
    talk: Talk,
) -> BenchRecord:
    """Measure plain and speculative decoding at every batch size.

    Args:
        target_folder: of the Llama family.
        draft_path: folder or file of the draft.
        prompts: at least one.
        config: with batches.
        placement: dtype and device.
        subject: copied into the record.
        talk: progress and notes.

    Raises:
        FastPathUnsupported: target or draft cannot speculate in batches.
        BatchMemoryTooSmall: a batch does not fit; raised before the first one runs.
        TextsDiffer: speculation changed a text.
    """
    pair = open_batch_pair(target_folder, draft_path, placement, talk, quantize=config.quantize)
    reason = why_not_captured(placement.device)
    captures = reason is None and config.rounds == "auto"
    if reason is not None and placement.device.type == "cuda":
        talk.note(f"steps are not captured as CUDA graphs, which is many times slower: {reason}")
    settings = BatchBenchSettings(
        batches=config.batches,
        depths=config.depths,
        num_repeats=config.repeats,
        max_new_tokens=config.max_new_tokens,
        stop_ids=pair.stop_ids,
        budget_bytes=None if config.max_cache_mib is None else config.max_cache_mib << 20,
        captures=captures,
    )
    judge = BatchJudge(EngineOracle(Engine(LlamaTarget(pair.weights))), MAX_LOGIT_GAP[config.dtype])
    batches, texts = run_batches(pair, prompts, settings, judge, talk=talk)
    path = "captured CUDA graphs" if captures else "torch"
    about = {"target_path": path, "draft_path": path, "threads": torch.get_num_threads()}
    return _record(batches, texts, prompts, judge, replace(subject, settings={**about, **subject.settings}), config)


def _record(
    batches: Sequence[BatchFigures],
    texts: Sequence[Completion],
    prompts: Sequence[BenchPrompt],
    judge: BatchJudge,
    subject: Subject,
    config: BenchConfig,
) -> BenchRecord:
    repetition = {
        name: repetition_share([t.ids for p, t in zip(prompts, texts, strict=True) if name in (ALL, p.set)])
        for name in dict.fromkeys((*(p.set for p in prompts), ALL))
    }
    notes = repetition_notes(repetition)
    if config.repeats == 1:
        notes.append("one repeat has no spread, so a speedup near 1 may be chance")
    return BenchRecord(
        figures=(),
        comparisons=(),
        best_num_draft_tokens=0,
        num_compared=judge.num_compared,
        num_identical=judge.num_compared - len(judge.divergences),
        divergences=judge.divergences,
        repetition=repetition,
        passages=(),
        target=subject.target,
        draft=subject.draft,
        data=subject.data,
        settings=subject.settings,
        verdict=_verdict(batches, judge),
        notes=notes,
        batches=batches,
    )


def _verdict(batches: Sequence[BatchFigures], judge: BatchJudge) -> str:
    lines = where_it_pays(batches)
    same = "all" if not judge.divergences else f"{judge.num_compared - len(judge.divergences)} of"
    lines.append(
        f"{same.capitalize()} {judge.num_compared} answers are equal to the plain ones of their batch, token for token"
        f"{parting(judge.divergences, judge.max_gap)}"
    )
    refusal = impossible_in_batches(batches)
    if refusal is not None:
        lines.insert(0, f"NOT VALID: {refusal.what} ({refusal.where})")
    return ". ".join(lines) + "."
