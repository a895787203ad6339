"""Stores of a tiny target's states over prepared rows, as an extraction would write them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eyas.contract.spec.target_spec import read_target
from eyas.models.placement import Placement
from eyas.models.target import Target
from eyas.store import StoreAbout, StoreRow, StoreWriter

CPU = Placement(torch.float32, torch.device("cpu"))
_LARGEST = torch.finfo(torch.float8_e4m3fn).max


def states_of(target: Target, ids: Iterable[int], boundaries: tuple[int, ...], *, is_normed: bool = True) -> Tensor:
    """[n, S, Ht] fp32: boundaries ascending, then the last state."""
    states = target.forward(torch.tensor([list(ids)]), [*boundaries, target.num_layers])
    *aux, before_norm = states.aux[0].chunk(len(boundaries) + 1, -1)
    return torch.stack([*aux, states.last[0] if is_normed else before_norm], 1)


def stored(states: Tensor, dtype: str) -> dict[str, Any]:
    """`states` and `scales` of a `StoreRow`."""
    if dtype == "float8_e4m3":
        scales = states.abs().amax(-1).clamp(min=1e-12) / _LARGEST
        values = (states / scales[..., None]).to(torch.float8_e4m3fn).flatten(1)
        return {"states": values.view(torch.uint8).numpy(), "scales": scales.numpy()}
    flat = states.flatten(1)
    if dtype == "bfloat16":
        return {"states": flat.bfloat16().view(torch.int16).numpy().view("<u2")}
    return {"states": flat.to(getattr(torch, dtype)).numpy()}


def write_store(
    folder: Path,
    target_folder: Path,
    rows: Iterable[Any],
    boundaries: tuple[int, ...],
    *,
    dtype: str = "float32",
    is_normed: bool = True,
    first: int = 0,
    **changes: Any,
) -> Path:
    """A store over `rows` (`TokenRow`; without flags: rows whose mask is not known)."""
    spec, target = read_target(target_folder), Target.load(target_folder, CPU)
    about = StoreAbout(
        **{
            "target": spec.as_document(),
            "hidden_size": spec.hidden_size,
            "num_layers": spec.num_layers,
            "vocab_size": target.vocab_size,
            "tokenizer": spec.tokenizer_hash,
            "template": spec.template_hash,
            "boundaries": boundaries,
            "last": "post-norm" if is_normed else "pre-norm",
            "dtype": dtype,
            "source": "a test",
            **changes,
        }
    )
    with StoreWriter.open(folder, about, shard_bytes=1 << 16) as writer:
        for row in rows:
            kept = states_of(target, row.token_ids, boundaries, is_normed=is_normed)[first:]
            flags = np.array(row.is_supervised, np.bool_) if row.is_supervised else None
            ids = np.array(row.token_ids, np.int32)
            writer.append(StoreRow(token_ids=ids, first=first, is_supervised=flags, **stored(kept, dtype)))
    return folder
