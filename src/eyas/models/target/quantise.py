"""int8 or int4 weights through torchao: less memory, and strictly another target.

Only the matrices of the decoder layers: embedding, head and norms stay as they are (a draft shares the first two), and
so do experts that a model keeps in one fused tensor. A text is then lossless against the quantised target, not against
the one in the folder.
"""

import importlib.metadata
import importlib.util
from typing import Any, Literal

import torch
from torch import Tensor, nn

from eyas.errors import EnvironmentMissing, EyasError
from eyas.models.placement import Placement
from eyas.models.target.target import Target
from eyas.talk import Talk

Quantisation = Literal["none", "int8", "int4"]
_GROUP = 128  # values of a row that share a scale in int4
_INSTALL = "pip install 'eyas[quantise]'"


class QuantisationUnsupported(EyasError):
    """torchao cannot quantise so on this device or in this dtype."""

    code = "quantisation-unsupported"


def require_quantisable(kind: Quantisation, placement: Placement) -> None:
    """Refuse what cannot work before any weight is read.

    Raises:
        EnvironmentMissing: torchao is not installed.
        QuantisationUnsupported: int4 outside a GPU in bfloat16.
    """
    if kind == "none":
        return
    if importlib.util.find_spec("torchao") is None:
        raise EnvironmentMissing(
            f"{kind} weights need torchao", f"--quantize {kind}", "the package torchao is not installed", _INSTALL
        )
    if kind == "int4" and (placement.device.type != "cuda" or placement.dtype != torch.bfloat16):
        raise QuantisationUnsupported(
            "int4 weights need a GPU and bfloat16",
            f"--quantize int4, {placement.device}, {str(placement.dtype).removeprefix('torch.')}",
            "torchao's int4 kernels support nothing else",
            "give --device cuda --dtype bfloat16, or --quantize int8",
        )


def quantised(weight: Tensor, kind: Quantisation) -> Tensor:
    """`weight` [N, K] quantised, still usable in `F.linear`; itself where its width does not divide into groups.

    Args:
        kind: int8: one scale for each row. int4: one scale and zero for each 128 values of a row.
    """
    if kind == "none" or (kind == "int4" and weight.shape[1] % _GROUP):
        return weight
    from torchao.quantization import quantize_

    holder = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    holder.weight = nn.Parameter(weight, requires_grad=False)
    quantize_(holder, _config(kind))
    return holder.weight


@torch.no_grad()
def quantise_target(target: Target, kind: Quantisation, talk: Talk) -> None:
    """Quantise the matrices of the target's decoder layers in place, one after the other, and say what stayed."""
    if kind == "none":
        return
    done = left = 0
    for layer in target.parts.layers:
        for module in layer.modules():
            if isinstance(module, nn.Linear):
                module.weight = nn.Parameter(quantised(module.weight.detach(), kind), requires_grad=False)
                done += module.weight.numel()
        left += sum(p.numel() for p in layer.parameters() if p.ndim >= 2 and not is_quantised(p))
    say_quantised(kind, done, left, talk)


def say_quantised(kind: Quantisation, done: int, left: int, talk: Talk) -> None:
    """One note: what was quantised, what was not, and what "lossless" means from here on."""
    share = f"; {left / max(1, done + left):.0%} of their parameters stay as they were" if left else ""
    talk.note(
        f"the matrices of the layers are {kind} (torchao {importlib.metadata.version('torchao')}){share};"
        " texts are those of the quantised target"
    )


def is_quantised(weight: Tensor) -> bool:
    """One of torchao's tensors."""
    return type(weight).__module__.startswith("torchao.") or type(weight.data).__module__.startswith("torchao.")


def stored_bytes(weight: Tensor) -> int:
    """Bytes that reading it takes; of a quantised one its codes, scales and zeros."""
    if not is_quantised(weight):
        return weight.numel() * weight.element_size()
    names, _ = weight.__tensor_flatten__()  # type: ignore[attr-defined]
    return sum(part.numel() * part.element_size() for part in (getattr(weight, name) for name in names))


def _config(kind: Quantisation) -> Any:
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig

    if kind == "int8":
        return Int8WeightOnlyConfig(set_inductor_config=False)
    return Int4WeightOnlyConfig(group_size=_GROUP, int4_packing_format="tile_packed_to_4d", set_inductor_config=False)
