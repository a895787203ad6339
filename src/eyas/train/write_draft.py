"""The folder of a trained draft: weights, config, sidecar, metrics; all or nothing."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eyas import __version__
from eyas.models.draft import Eagle3Draft
from eyas.models.save_draft import save_draft
from eyas.models.target_folder import fingerprint_weights
from eyas.records.atomic import atomic_folder
from eyas.records.checkpoint import METRICS
from eyas.train.config import TrainConfig
from eyas.train.journal import steps_of
from eyas.train.plan import TrainPlan
from eyas.train.request import TrainRequest


def write_draft(
    out: Path,
    request: TrainRequest,
    config: TrainConfig,
    plan: TrainPlan,
    draft: Eagle3Draft,
    records: Sequence[Mapping[str, Any]],
    kept: Mapping[str, Any] | None = None,
) -> None:
    """The draft's folder: weights, config and sidecar by `save_draft`, metrics beside them; all or nothing.

    Args:
        kept: the replay that chose this draft; None for the last one.
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
        if records:
            (aside / METRICS).write_text("".join(json.dumps(record) + "\n" for record in records))
