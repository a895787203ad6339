"""AdamW over a draft's trainable tensors, gradient clipping, and the guard that names what went wrong."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from eyas.errors import ExitCode, EyasError
from eyas.train.config import TrainConfig

_BETAS = (0.9, 0.95)


class TrainingDiverged(EyasError):
    """A loss, gradient or weight is no longer a finite number."""

    code = "training-diverged"
    exit_code = ExitCode.FINDINGS


def make_optimiser(draft: nn.Module, config: TrainConfig, lr: float) -> torch.optim.AdamW:
    """AdamW(0.9, 0.95); only matrices decay."""
    trained = [p for p in draft.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=_BETAS)


def clip_gradients(parameters: Iterable[tuple[str, nn.Parameter]], largest: float, step: int) -> float:
    """Scale all gradients so that their common norm is at most `largest`; gives the norm before.

    Raises:
        TrainingDiverged: the norm is not finite; the message names the tensors. No weight was touched.
    """
    named = [(name, p.grad) for name, p in parameters if p.grad is not None]
    norms = torch.stack([grad.norm() for _, grad in named])
    norm = norms.norm()
    if not bool(torch.isfinite(norm)):
        bad = [name for (name, _), n in zip(named, norms.tolist(), strict=True) if n != n or n in (float("inf"),)]
        raise diverged(f"the gradient of {', '.join(bad[:4])}{' and others' if len(bad) > 4 else ''}", step)
    scale = (largest / (norm + 1e-6)).clamp(max=1.0)
    for _, grad in named:
        grad.mul_(scale)
    return float(norm)


def require_finite(loss: Tensor, step: int) -> float:
    """The loss as a number.

    Raises:
        TrainingDiverged: it is none.
    """
    value = float(loss)
    if value != value or value in (float("inf"), float("-inf")):
        raise diverged("the loss", step)
    return value


def diverged(what: str, step: int) -> TrainingDiverged:
    """The error for `what` (a tensor's name, or the loss) at optimiser step `step`."""
    return TrainingDiverged(
        f"{what} is not a finite number",
        f"optimiser step {step + 1}",
        "training would only spread it; the weights before this step are kept in the last checkpoint",
        "start again with a smaller --lr, or look at the data of this step",
    )
