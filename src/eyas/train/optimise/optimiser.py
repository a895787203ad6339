"""AdamW or Muon over a draft's trainable tensors, clipping, their average, and the guard that names what went wrong.

Nothing here waits for the device, which itself decides whether all is finite. After the first step that is not, no
update is applied: when the host looks, some steps later, the weights are still those before that step.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from eyas.errors import ExitCode, EyasError
from eyas.train.config import TrainConfig
from eyas.train.optimise.muon import Divided, Muon
from eyas.train.optimise.ranks import SOLO, Ranks

_BETAS = (0.9, 0.95)
_ADAMW_KINDS = ("exp_avg", "exp_avg_sq")
_NOT_BETWEEN = ("lm_head.weight", "embed_tokens.weight")  # one row a token: Muon is not meant for them


class TrainingDiverged(EyasError):
    """A loss, gradient or weight is no longer a finite number."""

    code = "training-diverged"
    exit_code = ExitCode.FINDINGS


class GuardedOptimiser:
    """AdamW(0.9, 0.95), or Muon for the matrices between states, that stops for good at the first loss or gradient that
    is not finite; only matrices decay.

    Args:
        named: parameters with their names; those that require gradients are trained.
        config: the optimiser, weight decay, the largest gradient norm, whether weights are averaged.
        lr: until `update` gives another.
        parts_of: the ranks that hold a part of each tensor; SOLO where this one holds all of it.
        divided: how they divide them; None where this one holds all of each.

    Attributes:
        inner: torch's AdamW, for the state of what it updates.
        names: of the trained tensors, in order.
        parameters: the same tensors.
        average: their running average, tensor by tensor; empty where none is wanted.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, nn.Parameter]],
        config: TrainConfig,
        lr: float,
        parts_of: Ranks = SOLO,
        divided: Divided | None = None,
    ) -> None:
        trained = [(name, p) for name, p in named if p.requires_grad]
        self._parts_of = parts_of
        self.names = [name for name, _ in trained]
        self.parameters = [p for _, p in trained]
        self._largest, self._weight_decay = config.grad_clip, config.weight_decay
        is_muon = config.optimiser == "muon"
        by_muon = {name: p for name, p in trained if is_muon and p.ndim == 2 and name not in _NOT_BETWEEN}
        self._muon = Muon(by_muon, divided)
        others = [p for name, p in trained if name not in by_muon]
        groups = [
            {"params": [p for p in others if p.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
        ]
        # The fused kernel alone takes `found_inf`, on which it leaves weights and moments as they are.
        self.inner = torch.optim.AdamW(groups, lr=lr, betas=_BETAS, fused=True)
        self._has_diverged = torch.zeros((), device=self.parameters[0].device)
        self.inner.found_inf = self._has_diverged  # type: ignore[attr-defined]
        self.average = [p.detach().clone() for p in self.parameters] if config.average_share else []

    def forget_gradients(self) -> None:
        """Before a step: no tensor has one."""
        for parameter in self.parameters:
            parameter.grad = None

    def gradients(self) -> list[Tensor]:
        """One gradient for each trained tensor; zeros where no micro-batch reached it."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [p.grad for p in self.parameters if p.grad is not None]

    @torch.no_grad()
    def update(self, lr: float, loss: Tensor, average_keep: float = 0.0) -> Tensor:
        """Clip and apply the gradients, unless something is or was not finite.

        Args:
            lr: of this step.
            loss: scalar, of this step.
            average_keep: how much of the average is kept; the rest is of the new weights.

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
        self._muon.step(dict(zip(self.names, gradients, strict=True)), lr, self._weight_decay, self._has_diverged > 0)
        if self.average:
            changes = list(torch._foreach_sub(list[Tensor](self.parameters), self.average))
            torch._foreach_mul_(changes, (1.0 - average_keep) * (1.0 - self._has_diverged))
            torch._foreach_add_(self.average, changes)
        return norms

    def kinds(self) -> dict[str, tuple[str, ...]]:
        """Name of tensor -> names of what is remembered of it, each of its shape."""
        averaged = ("average",) if self.average else ()
        by_muon = self._muon.momentum
        return {n: (*(("momentum",) if n in by_muon else _ADAMW_KINDS), *averaged) for n in self.names}

    def moments(self) -> dict[str, dict[str, Tensor]]:
        """Name of tensor -> what is remembered of it, by `kinds`; less before the first step."""
        found = {name: dict(self.inner.state[p]) for name, p in zip(self.names, self.parameters, strict=True)}
        for name, momentum in self._muon.momentum.items():
            found[name]["momentum"] = momentum
        for name, average in zip(self.names, self.average, strict=False):
            found[name]["average"] = average
        return found

    @torch.no_grad()
    def set_moments(self, step: int, moments: Sequence[Mapping[str, Tensor]]) -> None:
        """Continue after `step` steps with these `moments`, one mapping a trained tensor."""
        for number, (name, given) in enumerate(zip(self.names, moments, strict=True)):
            if self.average:
                self.average[number].copy_(given["average"])
            if name in self._muon.momentum:
                self._muon.momentum[name].copy_(given["momentum"])
                continue
            parameter = self.parameters[number]
            kept = {kind: given[kind].to(parameter.device) for kind in _ADAMW_KINDS}
            self.inner.state[parameter] = {"step": torch.tensor(float(step), device=parameter.device), **kept}

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, the parameters are their average, if there is one; afterwards they are as before."""
        if not self.average:
            yield
            return
        before = [p.detach().clone() for p in self.parameters]
        _put(self.parameters, self.average)
        try:
            yield
        finally:
            _put(self.parameters, before)


@torch.no_grad()
def _put(parameters: Sequence[nn.Parameter], values: Sequence[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


def diverged(what: str, step: int) -> TrainingDiverged:
    """The error for `what` (a tensor's name, or the loss) at optimiser step `step`."""
    return TrainingDiverged(
        f"{what} is not a finite number",
        f"optimiser step {step + 1}",
        "another step would spread it to all weights; the weights are as they were before this step",
        "start again with a smaller --lr, or look at the data of this step",
    )
