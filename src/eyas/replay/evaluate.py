"""`evaluate`: the stage behind `eyas eval`: load target and draft, answer what has no answer yet, replay, record."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from eyas.contract.target_spec import read_target
from eyas.models.draft import Eagle3Draft
from eyas.models.load_draft import load_draft
from eyas.models.placement import Placement, place
from eyas.models.target import Target
from eyas.models.target_folder import fingerprint_weights
from eyas.records import fingerprint
from eyas.records.eval_record import EvalRecord
from eyas.records.eval_rows import EvalPrompt, EvalRow, read_eval_rows, write_eval_rows
from eyas.replay.answers import answer_prompts
from eyas.replay.eval_config import EvalConfig
from eyas.replay.figures import figures_by_set, figures_of
from eyas.replay.replay import replay
from eyas.talk import Talk

_GPU_BATCH_TOKENS = 16384


def evaluate(
    draft_path: Path,
    target_folder: Path,
    data: Sequence[Path],
    config: EvalConfig,
    talk: Talk,
    *,
    save_rows: Path | None = None,
) -> EvalRecord:
    """The draft's accept length on the target's own greedy text, by replay.

    Args:
        draft_path: folder or file of the draft.
        target_folder: Hugging Face folder of the target.
        data: JSONL files (`records.eval_rows`), at least one.
        config: options.
        talk: progress, and what was defaulted or generated.
        save_rows: also write the rows with their answers here, so that the next run need not generate them.

    Raises:
        what reading the draft, the target and the rows raises (docs/errors.md).
    """
    started = time.monotonic()
    placement = place(config.dtype, config.device)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    read = read_eval_rows(data, config.max_rows)
    notes: list[str] = []
    target = Target.load(target_folder, placement)
    draft = _load_draft(draft_path, target_folder, target, placement, talk)
    if config.dtype != "float32":
        notes.append(f"computed in {config.dtype}: near-ties between tokens may fall otherwise than in float32")
    rows = _answered(read, target, target_folder, config, talk, notes)
    if save_rows is not None:
        write_eval_rows(rows, save_rows)
    batch_tokens = config.batch_tokens or (1 if placement.device.type == "cpu" else _GPU_BATCH_TOKENS)
    results = replay(target, draft, rows, config.num_draft_tokens, talk, batch_tokens=batch_tokens)
    if single := sum(not result.accepted for result in results):
        notes.append(f"{single} rows have a single recorded token: no round, and no part in any figure")
    for note in notes:
        talk.note(note)
    return EvalRecord(
        figures=figures_of(results, config.num_draft_tokens),
        sets=figures_by_set(results, config.num_draft_tokens),
        rows=results,
        draft=_about_draft(draft_path, draft),
        target=_about_target(target_folder),
        data=_about_data(data, rows),
        settings=_settings(config, placement, time.monotonic() - started),
        notes=notes,
    )


def _load_draft(draft_path: Path, target_folder: Path, target: Target, placement: Placement, talk: Talk) -> Eagle3Draft:
    return load_draft(
        draft_path,
        placement,
        target_spec=read_target(target_folder),
        target_embedding=target.parts.embedding,
        target_head=target.parts.head,
        talk=talk,
    )


def _answered(
    read: Sequence[EvalRow | EvalPrompt],
    target: Target,
    folder: Path,
    config: EvalConfig,
    talk: Talk,
    notes: list[str],
) -> list[EvalRow]:
    prompts = [row for row in read if isinstance(row, EvalPrompt)]
    if prompts:
        said = f"{len(prompts)} of {len(read)} rows are prompts without an answer: the target answers them greedily"
        talk.line(f"{said}, at most {config.max_new_tokens} tokens each (keep them with --save-rows)")
        notes.append(f"{said} in {config.dtype}")
    answers = iter(answer_prompts(target, folder, prompts, config.max_new_tokens, talk) if prompts else [])
    return [next(answers) if isinstance(row, EvalPrompt) else row for row in read]


def _about_target(folder: Path) -> dict[str, Any]:
    return {"path": str(folder), **read_target(folder).as_document(), "weights": fingerprint_weights(folder)}


def _about_draft(path: Path, draft: Eagle3Draft) -> dict[str, Any]:
    spec = draft.spec
    files = sorted(path.glob("*.safetensors")) + sorted(path.glob("*.bin")) if path.is_dir() else [path]
    return {
        "path": str(path),
        "fingerprint": fingerprint.of_files(files),
        "dialect": spec.dialect,
        "aux_boundaries": list(spec.aux_boundaries or ()),
        "residual": spec.residual,
        "aux_norm": spec.aux_norm,
        "feedback": spec.feedback,
        "draft_vocab_size": spec.draft_vocab_size,
        "trained_length": spec.trained_length,
    }


def _about_data(paths: Sequence[Path], rows: Sequence[EvalRow]) -> dict[str, Any]:
    return {
        "paths": [str(path) for path in paths],
        "fingerprint": fingerprint.of_json([row.as_document() for row in rows]),
        "num_rows": len(rows),
        "num_prompt_tokens": sum(len(row.prompt_ids) for row in rows),
        "num_response_tokens": sum(len(row.response_ids) for row in rows),
    }


def _settings(config: EvalConfig, placement: Placement, seconds: float) -> dict[str, Any]:
    return {
        **asdict(config),
        "device": str(placement.device),
        "threads": torch.get_num_threads(),
        "seconds": round(seconds, 2),
        "versions": {name: version(name) for name in ("eyas", "torch", "transformers")},
    }
