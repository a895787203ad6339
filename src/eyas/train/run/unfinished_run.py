"""Saving and restoring an unfinished run: weights, moments, step, best draft, RNG, metrics; whole or not at all."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from eyas.errors import EyasError
from eyas.records.atomic import WriteFailed, atomic_folder
from eyas.records.checkpoint import LAST_GOOD, METRICS, SCHEMA, STATE, TENSORS, CheckpointState
from eyas.train.optimise.trainer import Trainer
from eyas.train.run.metrics_journal import steps_of
from eyas.train.run.state_tensors import (
    MOMENTS,
    PARTS,
    load_parts,
    own_parts,
    put_state_tensors,
    save_parts,
    state_tensors,
)

_OURS = {LAST_GOOD, METRICS, PARTS, STATE, TENSORS}


class CheckpointForeign(EyasError):
    """The unfinished run beside the output was started with something else."""

    code = "checkpoint-foreign"


class CheckpointDamaged(EyasError):
    """The unfinished run cannot be read."""

    code = "checkpoint-damaged"


def save_checkpoint(
    folder: Path,
    trainer: Trainer,
    state: CheckpointState,
    metrics: Sequence[Mapping[str, Any]],
    best: Mapping[str, Tensor] | None = None,
) -> None:
    """Write the run aside and swap it in; a kill at any moment leaves the checkpoint before or this one.

    With shards all ranks call it together, otherwise the first one alone.

    Args:
        best: `draft_tensors` of the draft that accepts most so far; known to the first rank.
    """
    ranks, shards = trainer.ranks, trainer.shards
    if not ranks.is_first:
        assert shards is not None, "without shards the first rank writes alone"
        save_parts(ranks.gather(Path())[0], trainer, shards)
        return
    with atomic_folder(folder, replace=True) as aside:
        tensors = {f"best.{name}": tensor for name, tensor in (best or {}).items()}
        tensors |= {f"rng.{name}": tensor for name, tensor in _rng_states(trainer.target.device).items()}
        if shards is None:
            tensors |= {key: tensor.cpu().contiguous() for key, tensor in state_tensors(trainer).items()}
        else:
            save_parts(ranks.gather(aside / PARTS)[0], trainer, shards)
        save_file(tensors, aside / TENSORS)
        (aside / METRICS).write_text("".join(json.dumps(record) + "\n" for record in metrics), encoding="utf-8")
        (aside / STATE).write_text(json.dumps(state.as_document(), indent=2) + "\n", encoding="utf-8")


def draft_tensors(draft: nn.Module) -> dict[str, Tensor]:
    """The draft's parameters on the CPU as they will be written, bf16: what is kept of the best draft."""
    return {name: p.detach().to("cpu", torch.bfloat16).contiguous() for name, p in draft.named_parameters()}


@torch.no_grad()
def put_tensors(draft: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """`draft_tensors` back into a draft."""
    for name, parameter in draft.named_parameters():
        parameter.copy_(tensors[name])


def read_state(folder: Path, run: Mapping[str, Any]) -> CheckpointState | None:
    """Where the run kept in `folder` stands; None when there is none.

    Args:
        run: what the present run is made of.

    Raises:
        CheckpointForeign: the kept run was made of something else; the message says what changed.
        CheckpointDamaged: the folder cannot be read, is none, or holds what eyas did not write.
    """
    _require_ours(folder)
    if not folder.exists():
        return None
    try:
        document = json.loads((folder / STATE).read_text(encoding="utf-8"))
        if document.pop("schema") != SCHEMA:
            raise ValueError(f"another schema than {SCHEMA}")
        state = CheckpointState(**document)
        if not (_is_count(state.step) and _is_count(state.num_tokens) and isinstance(state.run, dict)):
            raise ValueError("`step`, `num_tokens` or `run` is not what it should be")
        if not all(isinstance(run_id, str) for run_id in state.wandb_runs.values()):
            raise ValueError("`wandb_runs` holds an id that is no text")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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


def throw_away(folder: Path) -> None:
    """Delete the run kept in `folder`; nothing where there is none. Several processes may do so at once.

    Raises:
        CheckpointDamaged: what stands there, or lies in it, was not written by eyas.
        WriteFailed: it cannot be deleted.
    """
    _require_ours(folder)
    shutil.rmtree(folder, ignore_errors=True)  # what another process deleted first is no error
    if folder.exists():
        raise WriteFailed(
            f"cannot delete the unfinished run {folder}",
            str(folder),
            "some of it is still there, and what is left must not be gone on with",
            "delete it yourself (permissions?), or choose another --out",
        )


def _require_ours(folder: Path) -> None:
    """What eyas did not write in the run's place would stop the first checkpoint, hours later, or be lost with it."""
    what = why = ""
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
        what, why = "is no folder", "eyas neither writes into nor deletes a file or a link in its place"
    else:
        # Of what a system itself puts into folders, the names begin with a point.
        strange = sorted(name for name in _names_in(folder) if name not in _OURS and not name.startswith("."))
        if strange:
            what, why = f"holds {', '.join(strange[:3])}", "eyas did not write that, and would delete it"
    if what:
        raise CheckpointDamaged(
            f"{folder} {what}",
            str(folder),
            f"an unfinished run is kept there, and {why}",
            "move it away, or choose another --out",
        )


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:  # there is none, or another process has just thrown it away
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a checkpoint gives back besides the trainer's state: the metrics so far, the best draft's tensors."""

    metrics: list[dict[str, Any]]
    best: dict[str, Tensor] | None


def restore(folder: Path, trainer: Trainer, state: CheckpointState) -> Restored:
    """Put weights, moments and random generators back. Of a run stopped by its first step there is nothing to put.

    Raises:
        CheckpointDamaged: tensors are missing, unreadable or of another shape, or the records are not of these steps.
    """
    if state.step == 0:
        return Restored(metrics=[], best=None)
    try:
        tensors = load_file(folder / TENSORS)
        metrics = [json.loads(line) for line in (folder / METRICS).read_text(encoding="utf-8").splitlines()]
        _require_steps(metrics, state.step)
        put_state_tensors(trainer, _state_tensors_in(folder, trainer, tensors), state.step)
        _set_rng_states(_under("rng.", tensors), trainer.target.device)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError, RuntimeError) as error:
        raise _damaged(folder, error) from error
    return Restored(metrics=metrics, best=_under("best.", tensors) or None)


def _require_steps(metrics: Sequence[Any], num_steps: int) -> None:
    """ValueError, KeyError or TypeError unless the records are those of the steps done, once each."""
    numbers = [record["step"] for record in steps_of(metrics)]
    if numbers != list(range(1, num_steps + 1)):
        raise ValueError(f"{METRICS} does not hold the steps 1 … {num_steps}, once each")
    needed = [record[name] for record in steps_of(metrics) for name in ("tokens", "seconds", "loss")]
    if not all(isinstance(value, int | float) for value in needed):
        raise ValueError(f"{METRICS} holds a loss, time or number of tokens that is no number")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _state_tensors_in(folder: Path, trainer: Trainer, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """For this trainer, from parts or whole tensors, whichever were written."""
    if (folder / PARTS).exists():
        return load_parts(folder / PARTS, trainer)
    whole = {key: t for key, t in tensors.items() if key.partition(".")[0] in ("draft", *MOMENTS)}
    return whole if trainer.shards is None else own_parts(whole, trainer.shards)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _rng_states(device: torch.device) -> dict[str, Tensor]:
    # Training draws nothing at present; what it may draw one day goes on where it stopped.
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _set_rng_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def _damaged(folder: Path, error: Exception) -> CheckpointDamaged:
    return CheckpointDamaged(
        "the unfinished run cannot be read",
        str(folder),
        f"{type(error).__name__}: {error}",
        "give --restart to throw it away and start again",
    )
