"""AdamW over a draft's trainable tensors, gradient clipping, and the guard that names what went wrong.

Nothing here waits for the device, which itself decides whether all is finite. After the first step that is not, no
update is applied: when the host looks, some steps later, the weights are still those before that step.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from eyas.errors import ExitCode, EyasError
from eyas.train.config import TrainConfig
from eyas.train.optimise.ranks import SOLO, Ranks

_BETAS = (0.9, 0.95)


class TrainingDiverged(EyasError):
    """A loss, gradient or weight is no longer a finite number."""

    code = "training-diverged"
    exit_code = ExitCode.FINDINGS


class GuardedAdamW:
    """AdamW(0.9, 0.95) that stops for good at the first loss or gradient that is not finite; only matrices decay.

    Args:
        named: parameters with their names; those that require gradients are trained.
        config: weight decay and the largest gradient norm.
        lr: until `update` gives another.
        parts_of: the ranks that hold a part of each tensor; SOLO where this one holds all of it.

    Attributes:
        inner: torch's optimiser, for its state.
        names: of the trained tensors, in order.
        parameters: the same tensors.
    """

    def __init__(
        self, named: Iterable[tuple[str, nn.Parameter]], config: TrainConfig, lr: float, parts_of: Ranks = SOLO
    ) -> None:
        trained = [(name, p) for name, p in named if p.requires_grad]
        self._parts_of = parts_of
        self.names = [name for name, _ in trained]
        self.parameters = [p for _, p in trained]
        self._largest = config.grad_clip
        groups = [
            {"params": [p for p in self.parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [p for p in self.parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        # The fused kernel alone takes `found_inf`, on which it leaves weights and moments as they are.
        self.inner = torch.optim.AdamW(groups, lr=lr, betas=_BETAS, fused=True)
        self._has_diverged = torch.zeros((), device=self.parameters[0].device)
        self.inner.found_inf = self._has_diverged  # type: ignore[attr-defined]

    def gradients(self) -> list[Tensor]:
        """One gradient for each trained tensor; zeros where no micro-batch reached it."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [p.grad for p in self.parameters if p.grad is not None]

    def update(self, lr: float, loss: Tensor) -> Tensor:
        """Clip and apply the gradients, unless something is or was not finite.

        Args:
            lr: of this step.
            loss: scalar, of this step.

        Returns:
            [P] norms of the tensors' gradients before clipping, on the device.
        """
        gradients = self.gradients()
        norms = torch.stack(torch._foreach_norm(gradients))
        if self._parts_of.size > 1:
            squares = norms.square()
            self._parts_of.sum_in_place([squares])
            norms = squares.sqrt()
        norm = norms.norm()
        is_fine = torch.isfinite(norm) & torch.isfinite(loss)
        self._has_diverged.copy_(torch.maximum(self._has_diverged, (~is_fine).float()))
        torch._foreach_mul_(gradients, (self._largest / (norm + 1e-6)).clamp(max=1.0))
        for group in self.inner.param_groups:
            group["lr"] = lr
        self.inner.step()
        return norms

    def moments(self) -> dict[str, dict[str, Tensor]]:
        """Name of tensor -> AdamW's state of it (empty before the first step)."""
        return {name: self.inner.state[p] for name, p in zip(self.names, self.parameters, strict=True)}

    def set_moments(self, step: int, moments: Sequence[dict[str, Tensor]]) -> None:
        """Continue after `step` steps with these moments, one dict (exp_avg, exp_avg_sq) a trained tensor."""
        for parameter, given in zip(self.parameters, moments, strict=True):
            counted = torch.tensor(float(step), device=parameter.device)
            self.inner.state[parameter] = {"step": counted, **{k: v.to(parameter.device) for k, v in given.items()}}


def diverged(what: str, step: int) -> TrainingDiverged:
    """The error for `what` (a tensor's name, or the loss) at optimiser step `step`."""
    return TrainingDiverged(
        f"{what} is not a finite number",
        f"optimiser step {step + 1}",
        "another step would spread it to all weights; the weights are as they were before this step",
        "start again with a smaller --lr, or look at the data of this step",
    )


def lr_share(step: int, num_steps: int, config: TrainConfig) -> float:
    """The share of the peak learning rate at `step` (0-based): linear warm-up, then cosine, linear or constant."""
    warmup = max(1, round(config.warmup_share * num_steps))
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup + 1) / max(1, num_steps - warmup)
    floor = config.final_lr_share
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "linear":
        return 1.0 - (1.0 - floor) * progress
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))
