"""Matrices as the steps multiply by them: cast and joined once per optimiser step, their gradients summed in fp32.

A draft's matrix is used at each of the K unrolled steps. Casting the fp32 master at each use, and letting autograd add
K gradients, costs more than some of the products.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.train.step.row_ops import rows_for


class ComputeWeight:
    """One matrix [O, I] made of parameters stacked by rows.

    Args:
        parts: the masters (parameters, or frozen tensors), in order of rows.
        dtype: in which to multiply.
        columns: these columns of each part alone; None for all.
    """

    def __init__(self, parts: Sequence[Tensor], dtype: torch.dtype, columns: slice | None = None) -> None:
        self.parts = tuple(parts)
        self._columns = slice(None) if columns is None else columns
        first = self._of(self.parts[0])
        self._grad: Tensor | None = None
        self._is_held = False
        # A frozen matrix that needs neither casting nor joining is used as it is.
        self._is_alias = not self.is_trained and len(parts) == 1 and columns is None and first.dtype == dtype
        if self._is_alias:
            self.value = first
            return
        self.value = torch.empty(sum(len(p) for p in parts), first.shape[1], dtype=dtype, device=first.device)
        self.refresh()

    @property
    def is_trained(self) -> bool:
        """Whether it needs a gradient."""
        return any(part.requires_grad for part in self.parts)

    def refresh(self) -> None:
        """Copy the masters' values."""
        if self._is_alias:
            return
        begin = 0
        with torch.no_grad():
            for part in self.parts:
                self.value[begin : begin + len(part)].copy_(self._of(part))
                begin += len(part)

    def add_gradient(self, grad_out: Tensor, x: Tensor) -> None:
        """Add that of `x @ value.T`: grad_out.T @ x, for grad_out [M, O] and x [M, I]."""
        if not self.is_trained:
            return
        self._grad = _accumulated(self._grad, grad_out, x, self.parts[0].dtype)

    def hold_gradient(self) -> Tensor:
        """Sum the gradient in one tensor from now on, whatever is published; the caller sets it to zero."""
        self._is_held = True
        self._grad = torch.zeros(self.value.shape, dtype=self.parts[0].dtype, device=self.value.device)
        return self._grad

    def publish(self) -> None:
        """Add the summed gradient to the masters' `grad`, and drop it."""
        if self._grad is None:
            return
        begin = 0
        for part in self.parts:
            mine = self._grad[begin : begin + len(part)]
            begin += len(part)
            if not part.requires_grad:
                continue
            if part.grad is None:
                part.grad = mine if mine.shape == part.shape else torch.zeros_like(part)
                if part.grad is mine:
                    continue
            part.grad[:, self._columns] += mine
        if not self._is_held:
            self._grad = None

    def _of(self, part: Tensor) -> Tensor:
        return part.detach()[:, self._columns]


def linear(x: Tensor, weight: ComputeWeight, addend: Tensor | None = None) -> Tensor:
    """x @ weight.T [+ addend], for x [T, I]; the weight's gradient goes to `weight`."""
    return cast(Tensor, _Linear.apply(x, weight.parts[0], weight, addend))  # type: ignore[no-untyped-call]


def swiglu_linear(gate_up: Tensor, weight: ComputeWeight) -> Tensor:
    """(silu(gate) * up) @ weight.T for gate_up [T, 2I]; silu(gate) * up is computed again in the backward."""
    return cast(Tensor, _SwigluLinear.apply(gate_up, weight.parts[0], weight))  # type: ignore[no-untyped-call]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, weight: ComputeWeight, addend: Tensor | None) -> Tensor:
        """`anchor` is a master: it makes autograd call `backward` even where x needs no gradient."""
        ctx.weight, ctx.has_addend = weight, addend is not None
        ctx.save_for_backward(x if weight.is_trained else None)
        if addend is None:
            return F.linear(x, weight.value)
        return torch.addmm(addend, x, weight.value.t())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad.contiguous()
        (x,) = ctx.saved_tensors
        if x is not None:
            ctx.weight.add_gradient(grad, x)
        grad_x = grad @ ctx.weight.value if ctx.needs_input_grad[0] else None
        return grad_x, None, None, grad if ctx.has_addend else None


class _SwigluLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, anchor: Tensor, weight: ComputeWeight) -> Tensor:
        ctx.weight = weight
        ctx.save_for_backward(gate_up)
        return F.linear(rows_for(gate_up).swiglu(gate_up), weight.value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad.contiguous()
        (gate_up,) = ctx.saved_tensors
        inner, grad_gate_up = rows_for(gate_up).swiglu_backward(gate_up, grad @ ctx.weight.value)
        ctx.weight.add_gradient(grad, inner)
        return grad_gate_up, None, None


def _accumulated(total: Tensor | None, grad_out: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """total + grad_out.T @ x in the master's dtype; in place."""
    left = grad_out.t()
    if x.dtype == dtype:
        return left @ x if total is None else total.addmm_(left, x)
    if _sums_wide(x.device, x.dtype):  # the product's fp32 sum is stored or added without rounding
        if total is None:
            return cast(Tensor, torch.ops.aten.mm.dtype(left, x, dtype))
        return cast(Tensor, torch.ops.aten.addmm.dtype_out(total, left, x, dtype, out=total))
    product = (left @ x).to(dtype)
    return product if total is None else total.add_(product)


@cache
def _sums_wide(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products of half-precision matrices can be stored and added in fp32 (CUDA, torch >= 2.8); tried once."""
    if device.type != "cuda" or not hasattr(torch.ops.aten.addmm, "dtype_out"):
        return False
    x, total = torch.ones(16, 16, device=device, dtype=dtype), torch.ones(16, 16, device=device)
    try:
        first = torch.ops.aten.mm.dtype(x.t(), x, torch.float32)
        torch.ops.aten.addmm.dtype_out(total, x.t(), x, torch.float32, out=total)
    except RuntimeError:
        return False
    return bool((first == 16).all() and (total == 17).all())
