"""From a finished replay to its record: figures, and everything that names what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from eyas import __version__
from eyas.contract.spec.target_spec import read_target
from eyas.decode.repetition import REPETITIVE, repetition_share
from eyas.models.draft import Eagle3Draft
from eyas.models.target_folder import fingerprint_weights
from eyas.records import fingerprint
from eyas.records.eval_record import EvalRecord, NotRepetitive, RowResult
from eyas.records.eval_rows import EvalRow
from eyas.replay.eval_config import EvalConfig
from eyas.replay.figures import figures_by_set, figures_of, is_nothing_accepted, nothing_accepted

_CAUSES = (
    "too few training tokens; rows that another model wrote; a draft of another target; or one read otherwise than it"
    " was trained (`eyas infer DRAFT --target T` tries that)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A finished replay.

    Attributes:
        draft_path, draft: what was evaluated.
        target: its identity.
        data: files that the rows came from.
        rows, results: in the same order.
        notes: what was defaulted, skipped or generated.
        seconds: wall time, loading included.
    """

    draft_path: Path
    draft: Eagle3Draft
    target: Mapping[str, Any]
    data: Sequence[Path]
    rows: Sequence[EvalRow]
    results: Sequence[RowResult]
    notes: Sequence[str]
    seconds: float


def record_of(done: Replayed, config: EvalConfig) -> EvalRecord:
    """The record of a replay."""
    single = sum(not result.accepted for result in done.results)
    more = [f"{single} rows have a single recorded token: no round, and no part in any figure"] if single else []
    figures = figures_of(done.results, config.depth)
    if is_nothing_accepted(figures):
        more.append(nothing_accepted(figures, _CAUSES))
    return EvalRecord(
        figures=figures,
        sets=figures_by_set(done.results, config.depth),
        rows=done.results,
        not_repetitive=_not_repetitive(done, config.depth),
        tree=None if config.tree_shape is None else asdict(config.tree_shape),
        draft=_about_draft(done.draft_path, done.draft),
        target=done.target,
        data=_about_data(done.data, done.rows),
        settings={
            **asdict(config),
            "device": str(done.draft.fc.weight.device),
            "threads": torch.get_num_threads(),
            "seconds": round(done.seconds, 2),
            "versions": {"eyas": __version__, "torch": torch.__version__, "transformers": transformers.__version__},
        },
        notes=[*done.notes, *more],
    )


def _not_repetitive(done: Replayed, num_draft_tokens: int) -> NotRepetitive:
    kept = [
        result
        for row, result in zip(done.rows, done.results, strict=True)
        if repetition_share([row.response_ids]) <= REPETITIVE
    ]
    return NotRepetitive(
        limit=REPETITIVE,
        figures=figures_of(kept, num_draft_tokens),
        sets=figures_by_set(kept, num_draft_tokens),
    )


def about_target(folder: Path) -> dict[str, Any]:
    """A target's identity: sizes and fingerprints of config, tokenizer, template and weights; no path."""
    spec = read_target(folder)
    return {**spec.as_document(), "text_model_type": spec.text_model_type, "weights": fingerprint_weights(folder)}


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
