"""The stage of `eyas bench`: opens engine and data, measures one stream or batches, describes what was run."""

import platform
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch

from eyas import __version__
from eyas.bench.batches import BatchJudge, impossible_in_batches, run_batches, where_it_pays
from eyas.bench.bench_config import BenchConfig
from eyas.bench.engine_arm import EngineOracle, TransformersArm
from eyas.bench.measure import ALL, MAX_LOGIT_GAP, BenchPrompt
from eyas.bench.processor_wait import ProcessorWait, refused
from eyas.bench.run_bench import BenchSetup, parting, repetition_notes, run_bench
from eyas.contract.reading.open_draft import open_draft
from eyas.contract.spec.target_spec import read_target
from eyas.decode.repetition import repetition_share
from eyas.engine.batches.generator import Completion
from eyas.engine.batches.speculate import open_batch_pair
from eyas.engine.captured.captured_round import MOST_DRAFTS
from eyas.engine.cuda_graphs import why_not_captured
from eyas.engine.engine import Engine, Limits
from eyas.engine.llama.llama_target import LlamaTarget
from eyas.engine.open_engine import open_engine
from eyas.models.chat_prompt import load_tokenizer, prompt_ids, stop_ids_of
from eyas.models.placement import Placement, place
from eyas.models.target_folder import fingerprint_weights
from eyas.records import fingerprint
from eyas.records.bench_record import BatchFigures, BenchRecord
from eyas.records.eval_rows import EvalPrompt, EvalRow, read_eval_rows
from eyas.replay.replay import check_vocabulary
from eyas.talk import Talk


def bench_engine(
    target_folder: Path, draft_path: Path, data: Sequence[Path], config: BenchConfig, *, cache: Path, talk: Talk
) -> BenchRecord:
    """Measure eyas' engine with and without a draft: one stream, or batches if the options say so.

    Args:
        target_folder: Hugging Face folder.
        draft_path: folder or file of the draft.
        data: JSONL files (`records.eval_rows`), at least one; only the prompts are used.
        config: options.
        cache: eyas' cache folder, for compiled kernels.
        talk: progress and notes.

    Raises:
        TextsDiffer: see `run_bench`.
        FastPathUnsupported, BatchMemoryTooSmall: see `bench_in_batches`.
        RowOutsideVocabulary: a row has ids that the target does not have.
        What reading the draft, the target and the rows raises (docs/errors.md).
    """
    placement = place(config.dtype, config.device)
    talk.line(f"measuring on {placement.device}, {_device_name(placement.device)}, in {config.dtype}")
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    open_draft(draft_path, read_target(target_folder))  # its errors come before anything is measured
    rows = read_eval_rows(data)
    _require_own_ids(rows, target_folder)
    tokenizer = TargetTokenizer(target_folder)
    prompts = workload(rows, tokenizer.prompt_ids, config.max_prompts)
    say_beyond_context(prompts, config.max_new_tokens, read_target(target_folder).max_position_embeddings, talk)
    subject = BenchSetup(
        target={**read_target(target_folder).as_document(), "weights": fingerprint_weights(target_folder)},
        draft=_about_draft(draft_path),
        data={
            "files": [path.name for path in data],
            "fingerprint": fingerprint.of_json([list(p.prompt_ids) for p in prompts]),
            "num_prompts": len(prompts),
        },
        settings=_about_settings(config, placement),
    )
    if config.batches:
        return bench_in_batches(target_folder, draft_path, prompts, config, placement, subject, talk)
    num_threads = torch.get_num_threads()
    opened = open_engine(
        target_folder,
        draft_path,
        placement,
        cache=cache,
        num_threads=num_threads,
        talk=talk,
        rounds=rounds_for(config, placement.device, talk),
        quantize=config.quantize,
    )
    stop_ids = stop_ids_of(target_folder)
    limits = Limits(max_new_tokens=config.max_new_tokens, stop_ids=stop_ids)
    peers = []
    if config.peer == "transformers":
        peers.append(TransformersArm(target_folder, limits, config.dtype, str(placement.device), num_threads))
    about = {
        "target_path": opened.target_path,
        "draft_path": opened.draft_path,
        "weight_bytes": opened.weight_bytes,
        "threads": opened.num_threads,
    }
    subject = replace(subject, settings={**about, **subject.settings})
    return run_bench(
        opened.engine, prompts, config, subject, pieces=tokenizer.pieces, talk=talk, stop_ids=stop_ids, peers=peers
    )


class TargetTokenizer:
    """The tokenizer of a Hugging Face folder, loaded on first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loaded: Any = None

    def prompt_ids(self, prompt: EvalPrompt) -> tuple[int, ...]:
        """A conversation under the chat template, ready for the answer.

        Raises:
            TokenizerUnloadable, TemplateFailed: see `models.chat_prompt`.
        """
        return prompt_ids(self._tokenizer, prompt.messages, prompt.tools, f"row {prompt.id}")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text that each id adds; a character made of several ids counts for its last one."""
        texts, before = [], ""
        for end in range(1, len(ids) + 1):
            now = self._tokenizer.decode(ids[:end])
            if now.endswith("�") and end < len(ids):
                texts.append("")
                continue
            texts.append(now[len(before) :])
            before = now
        return texts

    @property
    def _tokenizer(self) -> Any:
        if self._loaded is None:
            self._loaded = load_tokenizer(self._folder)
        return self._loaded


def workload(
    rows: Sequence[EvalRow | EvalPrompt], prompt_ids: Callable[[EvalPrompt], tuple[int, ...]], per_set: int | None
) -> list[BenchPrompt]:
    """The rows' prompts; only the first `per_set` of each set, if given."""
    taken: Counter[str] = Counter()
    prompts = []
    for row in rows:
        taken[row.set] += 1
        if per_set is None or taken[row.set] <= per_set:
            ids = row.prompt_ids if isinstance(row, EvalRow) else prompt_ids(row)
            prompts.append(BenchPrompt(id=row.id, set=row.set, prompt_ids=ids))
    return prompts


def _require_own_ids(rows: Sequence[EvalRow | EvalPrompt], target_folder: Path) -> None:
    """Raise `RowOutsideVocabulary` before the engine is opened; skipped if the target's config gives no size."""
    vocab_size = read_target(target_folder).vocab_size
    for row in rows:
        if vocab_size is not None and isinstance(row, EvalRow):
            check_vocabulary(row, vocab_size)


def say_beyond_context(prompts: Sequence[BenchPrompt], max_new_tokens: int, context: int | None, talk: Talk) -> None:
    """Note the prompts that pass the target's context: their speed counts, their text and accept length do not."""
    if context is None:
        return
    num = sum(len(prompt.prompt_ids) + max_new_tokens > context for prompt in prompts)
    if num:
        talk.note(
            f"{num} of {len(prompts)} prompts with their answers can pass the target's context of {context} tokens:"
            " beyond it, text and accept length are not meaningful"
        )


def rounds_for(config: BenchConfig, device: torch.device, talk: Talk) -> Literal["auto", "reference"]:
    """As asked; the reference rounds for all arms where one arm cannot be captured: a plain arm on another path would
    not be a baseline. A CPU has no captured rounds."""
    if config.rounds == "reference" or device.type == "cpu":
        return config.rounds
    if config.trees:
        talk.note("all arms take the reference rounds: captured rounds draft no trees")
        return "reference"
    if max(config.depths, default=0) > MOST_DRAFTS:
        talk.note(f"all arms take the reference rounds: captured rounds draft at most {MOST_DRAFTS}")
        return "reference"
    return config.rounds


def _about_draft(path: Path) -> dict[str, Any]:
    files = sorted(path.glob("*.safetensors")) + sorted(path.glob("*.bin")) if path.is_dir() else [path]
    return {"path": str(path), "fingerprint": fingerprint.of_files(files)}


def _about_settings(config: BenchConfig, placement: Placement) -> dict[str, Any]:
    batch = f"batches of {config.batch}" if config.batches else "batch 1"
    turns = "arms take turns in each repeat" if config.batches else "arms take turns on each prompt"
    return {
        "engine": f"eyas {__version__}",
        "dtype": config.dtype,
        "quantize": config.quantize,
        "device": _device_name(placement.device),
        "repeats": config.repeats,
        "max_new_tokens": config.max_new_tokens,
        "decoding": f"greedy, {batch}, chain" + (" and trees" if config.trees else ""),
        "order": turns,
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "python": platform.python_version(),
        "seed": config.seed,
    }


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or 'CPU'}, {len(names) or '?'} cores"


def bench_in_batches(
    target_folder: Path,
    draft_path: Path,
    prompts: Sequence[BenchPrompt],
    config: BenchConfig,
    placement: Placement,
    subject: BenchSetup,
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
    judge = BatchJudge(EngineOracle(Engine(LlamaTarget(pair.weights))), MAX_LOGIT_GAP[config.dtype])
    wait = ProcessorWait()
    batches, texts = run_batches(pair, prompts, config, judge, captures=captures, talk=talk)
    waited = wait.share()
    path = "captured CUDA graphs" if captures else "torch"
    about = {"target_path": path, "draft_path": path, "threads": torch.get_num_threads(), "processor_wait": waited}
    return _record(batches, texts, prompts, judge, replace(subject, settings={**about, **subject.settings}), config)


def _record(
    batches: Sequence[BatchFigures],
    texts: Sequence[Completion],
    prompts: Sequence[BenchPrompt],
    judge: BatchJudge,
    subject: BenchSetup,
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
        verdict=_verdict(batches, judge, subject.settings["processor_wait"]),
        notes=notes,
        batches=batches,
    )


def _verdict(batches: Sequence[BatchFigures], judge: BatchJudge, waited: float | None) -> str:
    lines = where_it_pays(batches)
    same = "all" if not judge.divergences else f"{judge.num_compared - len(judge.divergences)} of"
    lines.append(
        f"{same.capitalize()} {judge.num_compared} answers are equal to the plain ones of their batch, token for token"
        f"{parting(judge.divergences, judge.max_gap)}"
    )
    if (refusal := impossible_in_batches(batches)) is not None:
        lines.insert(0, refused(refusal, waited))
    return ". ".join(lines) + "."
