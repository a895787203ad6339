"""Weights and moments of a run, to and from its checkpoint: whole, or in parts on several ranks.

The first rank writes whole tensors into one safetensors file; with parts all ranks write, through
`torch.distributed.checkpoint`. Either is read back whole or in parts, on any number of ranks.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from eyas.train.optimise.sharding import Shards
from eyas.train.optimise.trainer import Trainer

MOMENTS = ("exp_avg", "exp_avg_sq")
PARTS = "shards"


def state_tensors(trainer: Trainer) -> dict[str, Tensor]:
    """`draft.<name>`, and the moments as `exp_avg.<name>` and `exp_avg_sq.<name>`; this rank's parts with shards."""
    tensors = {f"draft.{name}": parameter.detach() for name, parameter in _parameters(trainer)}
    for name, moments in trainer.optimiser.moments().items():
        tensors |= {f"{kind}.{name}": moments[kind] for kind in MOMENTS if kind in moments}
    return tensors


@torch.no_grad()
def put_state_tensors(trainer: Trainer, tensors: Mapping[str, Tensor], step: int) -> None:
    """Copy `state_tensors` back into a trainer, which has then done `step` steps.

    Raises:
        KeyError, RuntimeError: a tensor is missing or has another shape.
    """
    trained = set(trainer.optimiser.names)
    for name, parameter in _parameters(trainer):
        for kind in ("draft", *MOMENTS) if name in trained else ("draft",):
            _require_like(f"{kind}.{name}", tensors[f"{kind}.{name}"], parameter)
        parameter.copy_(tensors[f"draft.{name}"])
    moments = [{kind: tensors[f"{kind}.{name}"] for kind in MOMENTS} for name in trainer.optimiser.names]
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
    trained = set(trainer.optimiser.names)
    wanted: dict[str, Tensor] = {}
    for name, parameter in _parameters(trainer):
        kinds = ("draft", *MOMENTS) if name in trained else ("draft",)
        wanted |= {f"{kind}.{name}": torch.empty_like(parameter).detach() for kind in kinds}
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
