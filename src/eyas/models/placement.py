"""The dtype and device that a model computes in, checked before anything is loaded."""

from dataclasses import dataclass
from typing import Literal

import torch

from eyas.errors import EnvironmentMissing, EyasError

DtypeName = Literal["float32", "bfloat16", "float16"]
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class PlacementInvalid(EyasError):
    """A dtype or device that does not exist."""

    code = "placement-invalid"


@dataclass(frozen=True, slots=True)
class Placement:
    """A dtype and a device that exist on this machine."""

    dtype: torch.dtype
    device: torch.device


def place(dtype: str, device: str) -> Placement:
    """The placement that `--dtype` and `--device` mean; a GPU other than the first becomes the process's own.

    Args:
        dtype: "float32", "bfloat16", "float16", or "auto": bfloat16 on a GPU, float32 elsewhere.
        device: "cpu", "cuda", "cuda:N", or "auto": the first GPU where there is one.

    Raises:
        PlacementInvalid: no such name.
        EnvironmentMissing: a GPU was asked for and torch sees none (or not that many).
    """
    if dtype not in (*_DTYPES, "auto"):
        raise PlacementInvalid(
            f"there is no dtype '{dtype}'", "--dtype", f"eyas knows {', '.join(_DTYPES)} and auto", "give one of these"
        )
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
        why = None if chosen.type in ("cpu", "cuda") else f"eyas does not support {chosen.type}"
    except RuntimeError as error:
        why = str(error).splitlines()[0]
    if why is not None:
        raise PlacementInvalid(f"there is no device '{device}'", "--device", why, "give cpu, cuda, cuda:N or auto")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise EnvironmentMissing(
            f"there is no device {device}",
            "--device",
            f"torch {torch.__version__} sees {torch.cuda.device_count()} GPUs",
            "give --device cpu, or install a torch that fits this machine's driver",
        )
    if chosen.index:
        # Triton's launches, streams, events and graphs are the current device's, wherever the tensors lie.
        torch.cuda.set_device(chosen)
    if dtype == "auto":
        dtype = "bfloat16" if chosen.type == "cuda" else "float32"
    return Placement(_DTYPES[dtype], chosen)
