"""A quantised draft's stored values as plain weights: what an engine's dequantising kernels multiply with.

Known: fp8 and int8 with a scale for a tensor, a row, a group of a row, or a block (compressed-tensors, ModelOpt,
DeepSeek's `weight_scale_inv`), and compressed-tensors' integers packed into int32. Activations are not quantised here:
an engine that does so rounds them once more, which moves near-ties only.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from eyas.contract.spec.tensor_names import PACKED_WEIGHTS, SCALE_SUFFIXES, module_and_kind
from eyas.errors import EyasError

_OF_ACTIVATIONS = ("input_scale", "input_global_scale", "k_scale", "v_scale")
_STORED = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
_BLOCK = (128, 128)
_PACKED_BITS = 32


class DraftPackingUnknown(EyasError):
    """The draft's weights are packed or scaled in a way that eyas cannot turn into plain weights."""

    code = "draft-packing-unknown"


def dequantise(
    tensors: dict[str, Tensor], quantization: Mapping[str, Any] | None, where: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Plain tensors under the canonical names, and the values of quantised weights without their scales (both float32).

    Args:
        tensors: canonical name -> as stored, scales included.
        quantization: the draft's own quantization_config.

    Raises:
        DraftPackingUnknown: another packing, or a scale that does not fit its weight.
    """
    plain, unscaled, parts = dict[str, Tensor](), dict[str, Tensor](), dict[str, dict[str, Tensor]]()
    for name, tensor in tensors.items():
        module, kind = module_and_kind(name)
        if kind in SCALE_SUFFIXES:
            parts.setdefault(module, {})[kind] = tensor
        else:
            plain[name] = tensor
    for module, scales in parts.items():
        scales = {kind: tensor for kind, tensor in scales.items() if kind not in _OF_ACTIVATIONS}
        if not scales:
            continue
        name = f"{module}.weight"
        try:
            values = _values(plain.get(name), scales)
            plain[name] = values * _scale(values.shape, scales, quantization or {})
        except (KeyError, ValueError, RuntimeError, IndexError, ZeroDivisionError) as error:
            raise _unknown(module, scales, where, error) from error
        unscaled[name] = values
    return plain, unscaled


def _values(weight: Tensor | None, scales: Mapping[str, Tensor]) -> Tensor:
    """The stored numbers [N, K] in float32, zero points taken off."""
    if weight is not None and weight.dtype in _STORED:
        values = weight.float()
        zero = scales.get("weight_zero_point")
        return values if zero is None else values - _spread(zero.float(), values.shape, _BLOCK)
    if weight is None and "weight_packed" in scales and "weight_zero_point" not in scales:
        return _unpacked(scales["weight_packed"], scales["weight_shape"].tolist())
    raise ValueError("neither fp8 nor int8 values, nor packed symmetric integers")


def _unpacked(packed: Tensor, shape: list[int]) -> Tensor:
    """Integers, the lowest bits first, stored with an offset. Source: compressed-tensors pack_quantized."""
    rows, columns = shape
    bits = _PACKED_BITS // -(-columns // packed.shape[1])
    if packed.dtype != torch.int32 or bits not in (4, 8):
        raise ValueError(f"{packed.dtype} words of {bits} bits a value")
    shifts = torch.arange(0, _PACKED_BITS, bits)
    values = (packed.long()[..., None] >> shifts) & ((1 << bits) - 1)
    return (values.reshape(rows, -1)[:, :columns] - (1 << (bits - 1))).float()


def _scale(shape: torch.Size, scales: Mapping[str, Tensor], quantization: Mapping[str, Any]) -> Tensor:
    if left := scales.keys() - {
        "weight_scale",
        "weight_scale_inv",
        "weight_zero_point",
        "weight_packed",
        "weight_shape",
    }:
        raise ValueError(f"{sorted(left)} are not known")
    block = quantization.get("weight_block_size") or _BLOCK
    scale = scales["weight_scale"] if "weight_scale" in scales else scales["weight_scale_inv"]
    return _spread(scale.float(), shape, (int(block[0]), int(block[1])))


def _spread(scale: Tensor, shape: torch.Size, block: tuple[int, int]) -> Tensor:
    """A scale for the tensor, each row, each group of a row, or each block, over all [N, K] of `shape`."""
    rows, columns = shape
    if scale.numel() == 1:
        return scale.reshape(1, 1)
    if scale.numel() == rows == scale.shape[0]:
        return scale.reshape(rows, 1)
    if scale.ndim == 2 and scale.shape[0] == rows and columns % scale.shape[1] == 0:
        return scale.repeat_interleave(columns // scale.shape[1], 1)
    if tuple(scale.shape) == tuple(-(-size // part) for size, part in zip(shape, block, strict=True)):
        spread = scale.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
        return spread[:rows, :columns]
    raise ValueError(f"a scale of {list(scale.shape)} does not fit a weight of {list(shape)}")


def _unknown(module: str, scales: Mapping[str, Tensor], where: str, error: Exception) -> DraftPackingUnknown:
    packed = [kind for kind in scales if kind in PACKED_WEIGHTS]
    return DraftPackingUnknown(
        f"cannot compute with the quantised {module}",
        where,
        f"{error}; beside it lie {', '.join(sorted(scales))}{' (packed)' if packed else ''}",
        "export the draft in BF16; eyas reads fp8, int8, and compressed-tensors' packed symmetric integers",
    )
