"""Muon: momentum, made orthogonal, for the matrices between states; embedding and head are not such.

Source: K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024); the factor 0.2 √max(m, n),
with which one learning rate suits AdamW too, is arXiv:2502.16982's.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

_MOMENTUM = 0.95
_ITERATIONS = 5
_QUINTIC = (3.4445, -4.7750, 2.0315)  # steepest at 0: singular values end between 0.7 and 1.2
_RMS = 0.2  # of an update, as AdamW's usually is


class Divided(Protocol):
    """Tensors of which each rank holds a part; all ranks ask together."""

    def whole_of(self, name: str, part: Tensor) -> Tensor:
        """The whole tensor, cut as the parameter `name` is."""

    def part_of(self, name: str, tensor: Tensor) -> Tensor:
        """This rank's part of it."""


class Muon:
    """Momentum and update of matrices.

    Args:
        named: [m, n] each, or this rank's part of it.
        divided: how the matrices are divided among ranks; None where this one holds all of each.

    Attributes:
        momentum: by name.
    """

    def __init__(self, named: Mapping[str, Tensor], divided: Divided | None = None) -> None:
        self._parameters, self._divided = named, divided
        self.momentum = {name: torch.zeros_like(p) for name, p in named.items()}

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], lr: float, weight_decay: float, is_stopped: Tensor) -> None:
        """Update in place; where the scalar `is_stopped` is true, on the device, nothing changes."""
        directions: dict[str, Tensor] = {}
        for name, momentum in self.momentum.items():
            gradient = gradients[name]
            momentum.copy_(torch.where(is_stopped, momentum, momentum.lerp(gradient, 1 - _MOMENTUM)))
            direction = torch.where(is_stopped, 0.0, gradient.lerp(momentum, _MOMENTUM))
            directions[name] = direction if self._divided is None else self._divided.whole_of(name, direction)
        keep = torch.where(is_stopped, 1.0, 1.0 - lr * weight_decay)
        for names in _by_shape(directions):  # matrices of one shape at a time: fewer launches
            changes = orthogonalised(torch.stack([directions[name] for name in names]))
            size = lr * _RMS * max(changes.shape[-2:]) ** 0.5
            for name, change in zip(names, changes, strict=True):
                own = change if self._divided is None else self._divided.part_of(name, change)
                self._parameters[name].mul_(keep).sub_(own, alpha=size)


def _by_shape(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    found: dict[torch.Size, list[str]] = {}
    for name, tensor in tensors.items():
        found.setdefault(tensor.shape, []).append(name)
    return list(found.values())


def orthogonalised(matrices: Tensor) -> Tensor:
    """[B, m, n] with the same singular vectors and singular values near 1 (0 where they were 0), by Newton-Schulz.

    In bf16 on a GPU: the iteration corrects its own rounding.
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    if matrices.is_cuda:
        x = x.bfloat16()
    a, b, c = _QUINTIC
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).to(matrices.dtype)
