"""What captured passes need: a device that has graphs, and blocks that their kernels compute."""

import importlib.util

import torch

from eyas.errors import EyasError


class FastPathUnsupported(EyasError):
    """This target or draft has a block that captured passes do not compute."""

    code = "fast-path-unsupported"


def why_not_captured(device: torch.device) -> str | None:
    """Why passes cannot be captured on this device, in words; None where they can."""
    if device.type != "cuda":
        return f"{device} has no CUDA graphs"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "its matrix units do not know bf16"
    return None
