"""States between numpy, which has neither bf16 nor fp8, and torch.

Shapes: P positions, S states per position, Ht hidden size.
"""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from eyas.store.about import StateDtype

_BITS = {"bfloat16": (torch.int16, torch.bfloat16), "float8_e4m3": (torch.uint8, torch.float8_e4m3fn)}
_LARGEST = torch.finfo(torch.float8_e4m3fn).max


def as_tensor(states: "NDArray[Any]", dtype: StateDtype, scales: "NDArray[Any] | None" = None) -> Tensor:
    """The values of stored states [P, S * Ht]; fp8 is multiplied with its scales and comes as float32."""
    if dtype not in _BITS:
        return torch.from_numpy(states.copy())
    bits, floats = _BITS[dtype]
    values = torch.from_numpy(states.copy()).view(bits).view(floats)
    if scales is None:
        return values
    factors = torch.from_numpy(scales.copy())
    split = values.float().reshape(*factors.shape, -1)
    return (split * factors[..., None]).flatten(-2)


def as_stored(values: Tensor) -> "NDArray[Any]":
    """A tensor on the CPU as numpy holds it in a store; no copy."""
    bits = {floats: bits for bits, floats in _BITS.values()}.get(values.dtype)
    array: NDArray[Any] = (values if bits is None else values.view(bits)).numpy()
    return array.view("<u2") if bits == torch.int16 else array


def to_fp8(values: Tensor, num_states: int) -> tuple[Tensor, Tensor]:
    """States [P, S * Ht] as fp8 and the scale of each, [P, S] float32, by which they are to be multiplied."""
    split = values.float().reshape(len(values), num_states, -1)
    largest = split.abs().amax(-1)
    scales = torch.where(largest > 0, largest / _LARGEST, 1.0)
    return (split / scales[..., None]).flatten(-2).to(torch.float8_e4m3fn), scales
