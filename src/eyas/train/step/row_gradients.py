"""Row operations and unrolled attention as autograd nodes, which keep nothing that can be computed again.

Shapes: T positions, H width, N query and M key/value heads of width d, J diagonal keys.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from eyas.train.rows.packing import Packed
from eyas.train.step.packed_attention import attend_rows, attend_rows_backward
from eyas.train.step.row_ops import Angles, HeadCounts, rows_for


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm of [T, H] rows, sums in fp32."""
    return cast(Tensor, _Norm.apply(x, weight, eps))  # type: ignore[no-untyped-call]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + residual, and its RMS norm; both [T, H]."""
    return cast(tuple[Tensor, Tensor], _AddNorm.apply(x, residual, weight, eps))  # type: ignore[no-untyped-call]


def rope_split(
    qkv: Tensor, angles: Angles, positions: Tensor, offset: int, heads: HeadCounts
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """q [T, N, d] and k, v [T, 2M, d] of qkv [T, (N + 2M) d]; q and k turned to positions + offset."""
    return cast(
        tuple[Tensor, Tensor],
        _RopeSplit.apply(qkv, angles, positions, offset, heads),  # type: ignore[no-untyped-call]
    )


def pick_rows(x: Tensor, rows: Tensor) -> Tensor:
    """x[rows]. Rows that are picked twice must have no gradient (they are padding)."""
    return cast(Tensor, _Pick.apply(x, rows))  # type: ignore[no-untyped-call]


@dataclass(slots=True)
class _Shared:
    """What the steps' nodes share. A tensor of the graph in here would keep the graph alive forever.

    Attributes:
        diagonal: [K - 1, T, 2M, d] keys and values of steps 1 … K - 1, filled step by step.
    """

    packed: Packed
    scale: float
    diagonal: Tensor | None = None


class UnrolledAttention:
    """The attention of one layer over all unrolled steps: step-0 keys causally in their row, later ones by index.

    Args:
        packed: the rows.
        num_steps: K, of which K - 1 have a diagonal key.
        scale: factor on the dot products.
    """

    def __init__(self, packed: Packed, num_steps: int, scale: float) -> None:
        self._shared, self._num_steps = _Shared(packed, scale), num_steps
        self._keys: list[Tensor] = []

    def __call__(self, query: Tensor, key_value: Tensor) -> Tensor:
        """[T, N d] of the next step's query [T, N, d] and keys and values [T, 2M, d]."""
        self._keys.append(key_value)
        step = len(self._keys) - 1
        if step > 0:
            shared = self._shared
            if shared.diagonal is None:
                shared.diagonal = key_value.new_empty(self._num_steps - 1, *key_value.shape)
            shared.diagonal[step - 1].copy_(key_value.detach())
        out = _Unrolled.apply(self._shared, step, query, *self._keys)  # type: ignore[no-untyped-call]
        return cast(Tensor, out).flatten(1)


class _Unrolled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, owner: _Shared, step: int, query: Tensor, first: Tensor, *later: Tensor) -> Tensor:
        """`first`: keys and values of step 0. `later`: of steps 1 … j, for their gradients; read from `diagonal`."""
        key, value = first.chunk(2, 1)
        out, lse = attend_rows(query, key, value, owner.packed, owner.scale)
        if step > 0:
            assert owner.diagonal is not None, "step 1 allocates it"
            out, lse = rows_for(query).merge(query, owner.diagonal[:step], out, lse, owner.scale)
        ctx.owner, ctx.step = owner, step
        ctx.save_for_backward(query, first, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        owner, step = ctx.owner, ctx.step
        query, first, out, lse = ctx.saved_tensors
        grad = grad.contiguous()
        key, value = first.chunk(2, 1)
        grad_query, *grad_first = attend_rows_backward(
            grad, query, key, value, out, lse, owner.packed, owner.scale
        )  # fmt: skip
        later: tuple[Tensor, ...] = ()
        if step > 0:
            diagonal = owner.diagonal[:step]
            grad_query = grad_query.contiguous()
            grad_query, grads = rows_for(query).merge_backward(query, diagonal, out, lse, grad, grad_query, owner.scale)
            later = tuple(grads)
        return None, None, grad_query, torch.cat(grad_first, 1), *later


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x = x.contiguous()
        ctx.eps = eps
        ctx.save_for_backward(x, weight)
        return rows_for(x).norm(x, None, weight, eps)[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_x, grad_weight = rows_for(x).norm_backward(x, weight, grad, None, ctx.eps)
        return grad_x, grad_weight, None


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total, normed = rows_for(x).norm(x, residual, weight, eps)
        ctx.eps = eps
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(total, weight)
        return total, normed

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor | None, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        total, weight = ctx.saved_tensors
        if grad is None:
            return grad_total, grad_total, None, None
        grad_x, grad_weight = rows_for(total).norm_backward(total, weight, grad, grad_total, ctx.eps)
        return grad_x, grad_x, grad_weight, None


class _RopeSplit(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, angles: Angles, positions: Tensor, offset: int, heads: HeadCounts
    ) -> tuple[Tensor, Tensor]:
        ctx.how = (angles, positions, offset, heads)
        return rows_for(qkv).rope(qkv, angles, positions, offset, heads)

    @staticmethod
    def backward(ctx: Any, grad_q: Tensor, grad_kv: Tensor) -> tuple[Tensor | None, ...]:
        return rows_for(grad_q).rope_backward(grad_q, grad_kv, *ctx.how), None, None, None, None


class _Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
        ctx.length = len(x)
        ctx.save_for_backward(rows)
        return x.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (rows,) = ctx.saved_tensors
        return grad.new_zeros(ctx.length, grad.shape[1]).index_copy_(0, rows, grad), None
