"""A target that computes no numbers is told at its first prompt: argmax of NaN is a token like any other."""

import torch
from torch import Tensor

from eyas.errors import EyasError


class TargetNotFinite(EyasError):
    """What the target computes over a text is no numbers."""

    code = "target-not-finite"


def require_finite(rows: Tensor, name: str) -> None:
    """Raise `TargetNotFinite` where rows [..., N], logits or states of the target `name`, have no finite maximum.

    A logit of minus infinity is a token that the model rules out. Waits for the device.
    """
    if torch.isfinite(rows.amax(-1)).all():
        return
    dtype = str(rows.dtype).removeprefix("torch.")
    raise TargetNotFinite(
        f"the target computes no finite numbers in {dtype}",
        name,
        "its logits over a text are NaN or infinite: its weights hold such values, or its states overflow"
        + (" float16, which ends at 65504" if dtype == "float16" else ""),
        "compute in bfloat16 or float32 (--dtype)" if dtype == "float16" else "download or export the weights again",
    )
