"""The folder of a trained draft: weights, config, sidecar and metrics, written whole or not at all."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eyas import __version__
from eyas.contract.convert.sidecar import NAME
from eyas.models.draft import Eagle3Draft
from eyas.models.save_draft import save_draft
from eyas.models.target_folder import fingerprint_weights
from eyas.records.atomic import atomic_folder
from eyas.records.checkpoint import METRICS
from eyas.records.eval_record import Figures
from eyas.train.config import TrainConfig
from eyas.train.preflight.train_plan import TrainPlan
from eyas.train.request import TrainRequest
from eyas.train.run.metrics_journal import WRITTEN_SCHEMA, replay_record, steps_of


def write_draft(
    out: Path,
    request: TrainRequest,
    config: TrainConfig,
    plan: TrainPlan,
    draft: Eagle3Draft,
    records: Sequence[Mapping[str, Any]],
    kept: Mapping[str, Any] | None = None,
    *,
    replay: Callable[[Path], Figures] | None = None,
) -> Mapping[str, Any] | None:
    """Write the draft's folder: weights, config and sidecar by `save_draft`, metrics beside them.

    Args:
        kept: the replay that chose this draft; None for the last draft.
        replay: replays the draft in a folder over the held-out rows, or None.

    Returns:
        The record of that replay, or None.
    """
    steps = steps_of(records)
    written = kept or (steps[-1] if steps else {"step": 0, "tokens": 0})
    about = {
        "trained_by": f"eyas {__version__}",
        "rows": plan.as_document()["rows"],
        "template_options": dict(plan.rows.manifest.template_options),
        "target_weights": fingerprint_weights(request.target),
        "options": asdict(config),
        "lr": plan.resolved.lr,
        "batch_tokens": plan.resolved.batch_tokens,
        "steps": written["step"],
        "tokens": written["tokens"],
        "held_out": dict(kept) if kept is not None else None,
    }
    with atomic_folder(out) as aside:
        save_draft(draft, aside, target_spec=plan.target, about=about, replace_existing=True)
        for weights in aside.glob("*.safetensors"):
            weights.chmod(0o644)  # safetensors makes it readable by the owner only
        as_written = None
        if replay is not None:
            place = {"schema": WRITTEN_SCHEMA, "step": written["step"], "tokens": written["tokens"]}
            as_written = {**place, **replay_record(replay(aside))}
            _add_to_sidecar(aside / NAME, as_written)
        lines = [*records, *([] if as_written is None else [as_written])]
        if records:
            (aside / METRICS).write_text("".join(json.dumps(record) + "\n" for record in lines), encoding="utf-8")
    return as_written


def _add_to_sidecar(path: Path, as_written: Mapping[str, Any]) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    document["about"]["as_written"] = as_written
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
