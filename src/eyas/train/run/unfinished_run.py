"""Checkpoints (OUT.resume): weights, moments, step, best draft, RNG and metrics of an unfinished run.

The first rank writes whole tensors into one safetensors file; with shards all ranks write, through
`torch.distributed.checkpoint`. Either is read back whole or in parts, on any number of ranks.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from eyas.errors import EyasError
from eyas.records import fingerprint
from eyas.records.atomic import WriteFailed, atomic_folder
from eyas.records.checkpoint import LAST_GOOD, METRICS, SCHEMA, STATE, TENSORS, CheckpointState
from eyas.train.optimise.sharding import Shards
from eyas.train.optimise.trainer import Trainer
from eyas.train.run.metrics_journal import steps_of

_KINDS = ("draft", "exp_avg", "exp_avg_sq", "momentum", "average")  # of tensors, as `GuardedOptimiser.kinds` has them
PARTS = "shards"


def state_tensors(trainer: Trainer) -> dict[str, Tensor]:
    """`draft.<name>`, and what the optimiser remembers as `exp_avg.<name>` and so on; this rank's parts with shards."""
    tensors = {f"draft.{name}": parameter.detach() for name, parameter in _parameters(trainer)}
    for name, moments in trainer.optimiser.moments().items():
        tensors |= {f"{kind}.{name}": moments[kind] for kind in _KINDS if kind in moments}
    return tensors


@torch.no_grad()
def put_state_tensors(trainer: Trainer, tensors: Mapping[str, Tensor], step: int) -> None:
    """Copy `state_tensors` back into a trainer, which has then done `step` steps.

    Raises:
        KeyError, RuntimeError: a tensor is missing or has another shape.
    """
    kinds = trainer.optimiser.kinds()
    for name, parameter in _parameters(trainer):
        for kind in ("draft", *kinds.get(name, ())):
            _require_like(f"{kind}.{name}", tensors[f"{kind}.{name}"], parameter)
        parameter.copy_(tensors[f"draft.{name}"])
    moments = [{kind: tensors[f"{kind}.{name}"] for kind in kinds[name]} for name in trainer.optimiser.names]
    trainer.optimiser.set_moments(step, moments)


def _require_like(key: str, tensor: Tensor, parameter: Tensor) -> None:
    # `copy_` would broadcast a smaller tensor and convert an integer one in silence.
    if tensor.shape != parameter.shape or tensor.dtype != parameter.dtype:
        wanted, found = ((str(t.dtype), tuple(t.shape)) for t in (parameter, tensor))
        raise RuntimeError(f"{key} is {found}, not {wanted}")


def save_parts(folder: Path, trainer: Trainer, shards: Shards) -> None:
    """Write this rank's parts; all ranks call it together, and it returns once all have written."""
    save(_as_whole(shards, state_tensors(trainer)), checkpoint_id=folder)


def load_parts(folder: Path, trainer: Trainer) -> dict[str, Tensor]:
    """`state_tensors` for this trainer from what `save_parts` wrote on any number of ranks.

    Raises:
        ValueError: unreadable.
    """
    kinds = trainer.optimiser.kinds()
    wanted: dict[str, Tensor] = {}
    for name, parameter in _parameters(trainer):
        own = ("draft", *kinds.get(name, ()))
        wanted |= {f"{kind}.{name}": torch.empty_like(parameter).detach() for kind in own}
    shards = trainer.shards
    try:
        if shards is None:
            load(wanted, checkpoint_id=folder, no_dist=True)
        else:
            load(_as_whole(shards, wanted), checkpoint_id=folder)
    except CheckpointException as error:
        raise ValueError(str(error).splitlines()[0]) from error
    return wanted


def own_parts(tensors: Mapping[str, Tensor], shards: Shards) -> dict[str, Tensor]:
    """This rank's parts of whole `state_tensors`."""
    return {key: shards.part_of(key.partition(".")[2], tensor) for key, tensor in tensors.items()}


def _as_whole(shards: Shards, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: shards.as_whole(key.partition(".")[2], part) for key, part in parts.items()}


def _parameters(trainer: Trainer) -> list[tuple[str, nn.Parameter]]:
    if trainer.shards is not None:
        return trainer.shards.local_parameters()
    return cast(list[tuple[str, nn.Parameter]], list(trainer.draft.named_parameters()))


_FILES, _FOLDERS = {METRICS, STATE, TENSORS}, {LAST_GOOD, PARTS}


class CheckpointForeign(EyasError):
    """The unfinished run beside the output has other inputs or options than this one."""

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
    """Write a checkpoint aside and swap it in; a kill at any moment leaves the previous one or this one.

    With shards all ranks call it together, otherwise the first one alone.

    Args:
        best: `draft_tensors` of the draft with the largest accept length so far; known to the first rank.
    """
    ranks, shards = trainer.ranks, trainer.shards
    if not ranks.is_first:
        assert shards is not None, "without shards only the first rank writes"
        save_parts(ranks.gather(Path())[0], trainer, shards)
        return
    with atomic_folder(folder, replace=True) as aside:
        tensors = {f"best.{name}": tensor for name, tensor in (best or {}).items()}
        tensors |= {f"rng.{name}": tensor for name, tensor in _rng_states(trainer.device).items()}
        if shards is None:
            tensors |= {key: tensor.cpu().contiguous() for key, tensor in state_tensors(trainer).items()}
        else:
            save_parts(ranks.gather(aside / PARTS)[0], trainer, shards)
        save_file(tensors, aside / TENSORS)
        (aside / METRICS).write_text("".join(json.dumps(record) + "\n" for record in metrics), encoding="utf-8")
        state = replace(state, fingerprints=_fingerprints(aside))
        (aside / STATE).write_text(json.dumps(state.as_document(), indent=2) + "\n", encoding="utf-8")


def draft_tensors(draft: nn.Module) -> dict[str, Tensor]:
    """The draft's parameters on the CPU in bf16, as they will be written."""
    return {name: p.detach().to("cpu", torch.bfloat16).contiguous() for name, p in draft.named_parameters()}


@torch.no_grad()
def put_tensors(draft: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy `draft_tensors` back into a draft."""
    for name, parameter in draft.named_parameters():
        parameter.copy_(tensors[name])


def read_state(folder: Path, run: Mapping[str, Any]) -> CheckpointState | None:
    """The state of the run kept in `folder`; None without one.

    Args:
        run: `run_identity` of the present run.

    Raises:
        CheckpointForeign: the kept run has other inputs or options; the message says which.
        CheckpointDamaged: it cannot be read, is not a folder, or holds files that eyas did not write.
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
            raise ValueError("`step` and `num_tokens` must be counts, and `run` an object")
        if not all(isinstance(text, str) for text in (*state.wandb_runs.values(), *state.fingerprints.values())):
            raise ValueError("`wandb_runs` or `fingerprints` holds a value that is not text")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(folder, error) from error
    # What went through JSON is compared with what went through JSON: tuples are lists there.
    given = json.loads(json.dumps(run))
    changed = [key for key in sorted({*given, *state.run}) if given.get(key) != state.run.get(key)]
    if changed:
        differences = "; ".join(f"{key}: {state.run.get(key)!r} then, {given.get(key)!r} now" for key in changed)
        raise CheckpointForeign(
            f"the unfinished run has other inputs or options (it is at step {state.step})",
            str(folder),
            differences,
            "run the same command as before to resume it, or give --restart to delete it and start again",
        )
    _require_unchanged(folder, state)
    return state


def _fingerprints(folder: Path) -> dict[str, str]:
    """Path below `folder` -> fingerprint of each file that a checkpoint holds besides its state."""
    held = [path for name in (METRICS, PARTS, TENSORS) for path in (folder / name, *(folder / name).rglob("*"))]
    return {str(path.relative_to(folder)): fingerprint.of_file(path) for path in held if path.is_file()}


def _require_unchanged(folder: Path, state: CheckpointState) -> None:
    """Refuse files that differ from those written: one flipped bit would silently give another draft."""
    found = _fingerprints(folder) if state.fingerprints else {}
    changed = sorted(name for name in {*found, *state.fingerprints} if found.get(name) != state.fingerprints.get(name))
    if changed:
        raise _damaged(
            folder, ValueError(f"{', '.join(changed[:3])}: missing or changed since the checkpoint was written")
        )


def throw_away(folder: Path) -> None:
    """Delete the run kept in `folder`, if there is one. Several processes may do so at the same time.

    Raises:
        CheckpointDamaged: eyas did not write it, or not all that it holds.
        WriteFailed: it cannot be deleted.
    """
    _require_ours(folder)
    shutil.rmtree(folder, ignore_errors=True)  # another process may have deleted it first
    if folder.exists():
        raise WriteFailed(
            f"cannot delete the unfinished run {folder}",
            str(folder),
            "some of it is still there, and the run cannot be resumed from what is left",
            f"delete {folder} yourself (look at its permissions), or choose another --out",
        )


def _require_ours(folder: Path) -> None:
    """Refuse files that eyas did not write: they would stop the first checkpoint, hours later, or be deleted by it."""
    what = why = ""
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
        what, why = "is not a folder", "eyas does not delete a file or a link in its place"
    else:
        # Names with a leading dot are the system's own (.DS_Store, .nfs…).
        # A pipe or a device under one of our names would never end being read.
        strange = sorted(
            name
            for name in _names_in(folder)
            if not name.startswith(".")
            and not (name in _FILES and (folder / name).is_file())
            and not (name in _FOLDERS and (folder / name).is_dir())
        )
        if strange:
            what, why = f"holds {', '.join(strange[:3])}", "eyas did not write that and would delete it"
    if what:
        raise CheckpointDamaged(
            f"{folder} {what}",
            str(folder),
            f"an unfinished run is kept there, and {why}",
            f"move {folder} away, or choose another --out",
        )


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:  # it does not exist, or another process has just deleted it
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a checkpoint holds besides the trainer's state: the metrics so far, the best draft's tensors."""

    metrics: list[dict[str, Any]]
    best: dict[str, Tensor] | None


def restore(folder: Path, trainer: Trainer, state: CheckpointState) -> Restored:
    """Put weights, moments and random generators back; a run that stopped at its first step has none.

    Raises:
        CheckpointDamaged: tensors are missing, unreadable or of another shape, or records of steps are missing.
    """
    if state.step == 0:
        return Restored(metrics=[], best=None)
    try:
        tensors = load_file(folder / TENSORS)
        metrics = [json.loads(line) for line in (folder / METRICS).read_text(encoding="utf-8").splitlines()]
        _require_steps(metrics, state.step)
        put_state_tensors(trainer, _state_tensors_in(folder, trainer, tensors), state.step)
        _set_rng_states(_under("rng.", tensors), trainer.device)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError, RuntimeError) as error:
        raise _damaged(folder, error) from error
    return Restored(metrics=metrics, best=_under("best.", tensors) or None)


def _require_steps(metrics: Sequence[Any], num_steps: int) -> None:
    """ValueError, KeyError or TypeError unless the records are those of the steps done, once each."""
    numbers = [record["step"] for record in steps_of(metrics)]
    if len(numbers) != num_steps or numbers != list(range(1, num_steps + 1)):  # a damaged count may be any
        raise ValueError(f"{METRICS} does not hold the steps 1 … {num_steps}, once each")
    needed = [record[name] for record in steps_of(metrics) for name in ("tokens", "seconds", "loss")]
    if not all(isinstance(value, int | float) for value in needed):
        raise ValueError(f"{METRICS} holds a loss, time or number of tokens that is not a number")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _state_tensors_in(folder: Path, trainer: Trainer, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The tensors for this trainer, from parts or from whole tensors, whichever were written."""
    if (folder / PARTS).exists():
        return load_parts(folder / PARTS, trainer)
    whole = {key: t for key, t in tensors.items() if key.partition(".")[0] in _KINDS}
    return whole if trainer.shards is None else own_parts(whole, trainer.shards)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _rng_states(device: torch.device) -> dict[str, Tensor]:
    # Training draws no random numbers today; if it does, a resumed run draws the same ones.
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
        "give --restart to delete it and start again",
    )
