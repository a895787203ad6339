"""Saving and restoring an unfinished run: fp32 weights, optimiser moments, step, metrics; whole or not at all."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from eyas.errors import EyasError
from eyas.records.atomic import atomic_folder
from eyas.records.checkpoint import METRICS, SCHEMA, STATE, TENSORS, CheckpointState
from eyas.train.trainer import Trainer

_MOMENTS = ("exp_avg", "exp_avg_sq")


class CheckpointForeign(EyasError):
    """The unfinished run beside the output was started with something else."""

    code = "checkpoint-foreign"


class CheckpointDamaged(EyasError):
    """The unfinished run cannot be read."""

    code = "checkpoint-damaged"


def save_checkpoint(
    folder: Path, trainer: Trainer, state: CheckpointState, metrics: Sequence[Mapping[str, Any]]
) -> None:
    """Write the run aside and swap it in; a kill at any moment leaves the checkpoint before or this one."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in trainer.draft.named_parameters():
        tensors[f"draft.{name}"] = parameter.detach().cpu().contiguous()
    for name, moments in trainer.optimiser.moments().items():
        tensors |= {f"{kind}.{name}": moments[kind].cpu().contiguous() for kind in _MOMENTS if kind in moments}
    with atomic_folder(folder, replace=True) as aside:
        save_file(tensors, aside / TENSORS)
        (aside / METRICS).write_text("".join(json.dumps(record) + "\n" for record in metrics))
        (aside / STATE).write_text(json.dumps(state.as_document(), indent=2) + "\n")


def read_state(folder: Path, run: Mapping[str, Any]) -> CheckpointState | None:
    """Where the run kept in `folder` stands; None when there is none.

    Args:
        run: what the present run is made of.

    Raises:
        CheckpointForeign: the kept run was made of something else; the message says what changed.
        CheckpointDamaged: the folder cannot be read.
    """
    if not folder.exists():
        return None
    try:
        document = json.loads((folder / STATE).read_text())
        if document.pop("schema") != SCHEMA:
            raise ValueError(f"another schema than {SCHEMA}")
        state = CheckpointState(**document)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(folder, error) from error
    # What went through JSON is compared with what went through JSON: tuples are lists there.
    given = json.loads(json.dumps(run))
    changed = [key for key in sorted({*given, *state.run}) if given.get(key) != state.run.get(key)]
    if changed:
        differences = "; ".join(f"{key}: {state.run.get(key)!r} then, {given.get(key)!r} now" for key in changed)
        raise CheckpointForeign(
            f"the unfinished run is another one (step {state.step})",
            str(folder),
            differences,
            "run the same command as before to go on with it, or give --restart to throw it away",
        )
    return state


def restore(folder: Path, trainer: Trainer, state: CheckpointState) -> list[dict[str, Any]]:
    """Put weights and moments back into `trainer`; gives the metrics so far.

    Raises:
        CheckpointDamaged: tensors are missing or unreadable.
    """
    try:
        tensors = load_file(folder / TENSORS)
        metrics = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
        with torch.no_grad():
            for name, parameter in trainer.draft.named_parameters():
                parameter.copy_(tensors[f"draft.{name}"])
        moments = [{kind: tensors[f"{kind}.{name}"] for kind in _MOMENTS} for name in trainer.optimiser.names]
        trainer.optimiser.set_moments(state.step, moments)
    except (OSError, ValueError, KeyError, SafetensorError, RuntimeError) as error:
        raise _damaged(folder, error) from error
    return metrics


def _damaged(folder: Path, error: Exception) -> CheckpointDamaged:
    return CheckpointDamaged(
        "the unfinished run cannot be read",
        str(folder),
        f"{type(error).__name__}: {error}",
        "give --restart to throw it away and start again",
    )
