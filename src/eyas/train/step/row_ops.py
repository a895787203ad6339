"""Row-wise operations of target and draft: fused Triton kernels on a GPU, their reference twins everywhere else.

`ROWS.triton` and `ROWS.reference` hold both for the tests that compare them; `rows_for(x)` chooses. Shapes: T rows, H
width, I MLP width, N query and M key/value heads of width d, J diagonal keys.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadCounts:
    """N query and M key/value heads, each d wide."""

    num_query: int
    num_kv: int
    width: int

    @property
    def total(self) -> int:
        """N + 2M."""
        return self.num_query + 2 * self.num_kv


@dataclass(frozen=True, slots=True, kw_only=True)
class Angles:
    """Cosines and sines, each [positions, d / 2] fp32, halves paired."""

    cos: Tensor
    sin: Tensor


class ReferenceRows:
    """The reference twin: what each operation computes. `row_gradients` makes them known to autograd."""

    def norm(self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(x + residual, its RMS norm times weight); without a residual the first is x itself. [T, H]."""
        total = x if residual is None else x + residual
        wide = total.to(wide_of(x))
        normed = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
        return total, (normed * weight.to(wide.dtype)).to(x.dtype)

    def norm_backward(
        self, total: Tensor, weight: Tensor, grad: Tensor, grad_total: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Gradients of the sum [T, H] and of the weight [H]; `grad_total` is what reaches the sum besides."""
        wide, grad = total.to(wide_of(total)), grad.to(wide_of(total))
        scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
        normed, inner = wide * scale, grad * weight.to(wide.dtype)
        grad_x = (inner - normed * (inner * normed).mean(-1, keepdim=True)) * scale
        if grad_total is not None:
            grad_x = grad_x + grad_total
        return grad_x.to(total.dtype), (grad * normed).sum(0).to(weight.dtype)

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up, [T, I] of [T, 2I]."""
        gate, up = gate_up.to(wide_of(gate_up)).chunk(2, -1)
        return (F.silu(gate) * up).to(gate_up.dtype)

    def swiglu_backward(self, gate_up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """The output [T, I] once more, and the gradient of gate_up [T, 2I]."""
        gate, up = gate_up.to(wide_of(gate_up)).chunk(2, -1)
        share, wide = gate.sigmoid(), grad.to(gate.dtype)
        silu = gate * share
        grads = torch.cat((wide * up * share * (1.0 + gate * (1.0 - share)), wide * silu), -1)
        return (silu * up).to(gate_up.dtype), grads.to(gate_up.dtype)

    def rope(
        self, qkv: Tensor, angles: Angles, positions: Tensor, offset: int, heads: HeadCounts
    ) -> tuple[Tensor, Tensor]:
        """q [T, N, d] and k, v [T, 2M, d] of qkv [T, (N + 2M) d], turned to positions + offset."""
        split = qkv.view(len(qkv), heads.total, heads.width)
        num_turned = heads.num_query + heads.num_kv
        turned = _turn(split[:, :num_turned], angles, positions + offset, 1.0)
        query, key = torch.split(turned, [heads.num_query, heads.num_kv], 1)
        return query.contiguous(), torch.cat((key, split[:, num_turned:]), 1)

    def rope_backward(
        self, grad_q: Tensor, grad_kv: Tensor, angles: Angles, positions: Tensor, offset: int, heads: HeadCounts
    ) -> Tensor:
        """Gradient of qkv."""
        grad = torch.cat((grad_q, grad_kv[:, : heads.num_kv]), 1)
        grad = _turn(grad, angles, positions + offset, -1.0)
        return torch.cat((grad, grad_kv[:, heads.num_kv :]), 1).flatten(1)

    def merge(self, q: Tensor, kv: Tensor, out: Tensor, lse: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Attention output [T, N, d] and log-sum-exp [N, T] with J diagonal keys [J, T, 2M, d] merged in."""
        keys, values = _spread(kv.to(wide_of(q)), q.shape[1])
        scores = (q.to(keys.dtype) * keys).sum(-1) * scale  # [J, T, N]
        before = lse.t().to(keys.dtype)
        after = torch.logaddexp(before, scores.logsumexp(0))
        weights = (scores - after).exp().unsqueeze(-1)
        merged = out.to(keys.dtype) * (before - after).exp().unsqueeze(-1) + (weights * values).sum(0)
        return merged.to(q.dtype), after.t().contiguous()

    def merge_backward(
        self, q: Tensor, kv: Tensor, out: Tensor, lse: Tensor, grad: Tensor, grad_q: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        """`grad_q` with the diagonal's share added, and the gradient of kv. `out`, `lse`: merged."""
        keys, values = _spread(kv.to(wide_of(q)), q.shape[1])
        query, wide = q.to(keys.dtype), grad.to(keys.dtype)
        weights = ((query * keys).sum(-1) * scale - lse.t()).exp()
        mean = (wide * out.to(keys.dtype)).sum(-1)
        grad_scores = (weights * ((wide * values).sum(-1) - mean) * scale).unsqueeze(-1)
        num_kv = kv.shape[2] // 2
        grads = (grad_scores * query, weights.unsqueeze(-1) * wide)
        grouped = [g.view(*g.shape[:2], num_kv, -1, g.shape[-1]).sum(3) for g in grads]
        return grad_q + (grad_scores * keys).sum(0).to(grad_q.dtype), torch.cat(grouped, 2).to(kv.dtype)


class TritonRows:
    """One launch each. Triton is imported at the first use."""

    def __init__(self) -> None:
        import triton

        from eyas.train.step.kernels import diagonal, rows

        self._rows, self._diagonal = rows, diagonal
        self._block, self._cdiv = triton.next_power_of_2, triton.cdiv

    def norm(self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See `ReferenceRows.norm`."""
        x, (num, width) = x.contiguous(), x.shape
        out, total = torch.empty_like(x), x if residual is None else torch.empty_like(x)
        added = x if residual is None else residual.contiguous()
        self._rows.norm_forward_kernel[(num,)](
            x, added, weight, total, out, eps, width,
            ADD=residual is not None, BLOCK=self._block(width), num_warps=_warps(width),
        )  # fmt: skip
        return total, out

    def norm_backward(
        self, total: Tensor, weight: Tensor, grad: Tensor, grad_total: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor]:
        """See `ReferenceRows.norm_backward`."""
        num, width = total.shape
        rows_each = self._block(self._cdiv(num, 1024))
        num_programs = self._cdiv(num, rows_each)
        grad_x, parts = torch.empty_like(total), total.new_empty(num_programs, width, dtype=torch.float32)
        besides = total if grad_total is None else grad_total.contiguous()
        self._rows.norm_backward_kernel[(num_programs,)](
            total, weight, grad.contiguous(), besides, grad_x, parts, eps, num, width,
            ROWS=rows_each, ADD=grad_total is not None, BLOCK=self._block(width), num_warps=_warps(width),
        )  # fmt: skip
        return grad_x, parts.sum(0).to(weight.dtype)

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """See `ReferenceRows.swiglu`."""
        num, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(num, width)
        block = min(1024, self._block(width))
        grid = (num, self._cdiv(width, block))
        self._rows.swiglu_forward_kernel[grid](gate_up, out, width, BLOCK=block, num_warps=4)
        return out

    def swiglu_backward(self, gate_up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """See `ReferenceRows.swiglu_backward`."""
        num, width = gate_up.shape[0], gate_up.shape[1] // 2
        out, grad_gate_up = gate_up.new_empty(num, width), torch.empty_like(gate_up)
        block = min(1024, self._block(width))
        grid = (num, self._cdiv(width, block))
        self._rows.swiglu_backward_kernel[grid](
            gate_up, grad.contiguous(), out, grad_gate_up, width, BLOCK=block, num_warps=4
        )
        return out, grad_gate_up

    def rope(
        self, qkv: Tensor, angles: Angles, positions: Tensor, offset: int, heads: HeadCounts
    ) -> tuple[Tensor, Tensor]:
        """See `ReferenceRows.rope`."""
        if not _is_power_of_two(heads.width):
            return ROWS.reference.rope(qkv, angles, positions, offset, heads)
        num = len(qkv)
        query = qkv.new_empty(num, heads.num_query, heads.width)
        key_value = qkv.new_empty(num, 2 * heads.num_kv, heads.width)
        self._rows.rope_forward_kernel[(num,)](
            qkv.contiguous(), angles.cos, angles.sin, positions, offset, query, key_value, **self._of(heads)
        )
        return query, key_value

    def rope_backward(
        self, grad_q: Tensor, grad_kv: Tensor, angles: Angles, positions: Tensor, offset: int, heads: HeadCounts
    ) -> Tensor:
        """See `ReferenceRows.rope_backward`."""
        if not _is_power_of_two(heads.width):
            return ROWS.reference.rope_backward(grad_q, grad_kv, angles, positions, offset, heads)
        grad = grad_q.new_empty(len(grad_q), heads.total * heads.width)
        self._rows.rope_backward_kernel[(len(grad_q),)](
            grad_q.contiguous(), grad_kv.contiguous(), angles.cos, angles.sin, positions, offset, grad,
            **self._of(heads),
        )  # fmt: skip
        return grad

    def _of(self, heads: HeadCounts) -> dict[str, int]:
        return {
            "N": heads.num_query,
            "M": heads.num_kv,
            "HALF": heads.width // 2,
            "HEADS": self._block(heads.total),
            "num_warps": 4,
        }

    def merge(self, q: Tensor, kv: Tensor, out: Tensor, lse: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """See `ReferenceRows.merge`; works in place."""
        num_kv = kv.shape[2] // 2
        self._diagonal.merge_forward_kernel[(len(q), num_kv)](
            q, kv, out, lse, scale, len(q), J=len(kv), **self._groups(q, num_kv)
        )
        return out, lse

    def merge_backward(
        self, q: Tensor, kv: Tensor, out: Tensor, lse: Tensor, grad: Tensor, grad_q: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        """See `ReferenceRows.merge_backward`; `grad_q` is changed in place."""
        grad_kv, num_kv = torch.empty_like(kv), kv.shape[2] // 2
        self._diagonal.merge_backward_kernel[(len(q), num_kv)](
            q, kv, out, lse, grad, grad_q, grad_kv, scale, len(q), J=len(kv), **self._groups(q, num_kv)
        )
        return grad_q, grad_kv

    def _groups(self, query: Tensor, num_kv: int) -> dict[str, int]:
        groups, width = query.shape[1] // num_kv, query.shape[2]
        sizes = {"M": num_kv, "G": groups, "GP": self._block(groups), "D": width, "DP": self._block(width)}
        return sizes | {"num_warps": 1}


RowOps = ReferenceRows | TritonRows


class _RowTwins:
    """Both twins; the kernels are made at their first use."""

    def __init__(self) -> None:
        self.reference = ReferenceRows()
        self._triton: TritonRows | None = None

    @property
    def triton(self) -> TritonRows:
        """The kernels."""
        if self._triton is None:
            self._triton = TritonRows()
        return self._triton


ROWS = _RowTwins()


def rows_for(x: Tensor) -> RowOps:
    """The kernels where they can run, else the reference twin."""
    fits = x.device.type == "cuda" and x.dtype in _KERNEL_DTYPES
    return ROWS.triton if fits else ROWS.reference


def wide_of(x: Tensor) -> torch.dtype:
    """The dtype to sum in: fp32, or fp64 for fp64."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _is_power_of_two(width: int) -> bool:
    return width & (width - 1) == 0


def _warps(width: int) -> int:
    return 4 if width <= 2048 else 8


def _turn(heads: Tensor, angles: Angles, positions: Tensor, sign: float) -> Tensor:
    """[T, n, d] turned by the angles of `positions` [T]."""
    wide = wide_of(heads)
    cos, sin = (table[positions.long()].to(wide).unsqueeze(1) for table in (angles.cos, angles.sin))
    first, second = heads.to(wide).chunk(2, -1)
    turned = torch.cat((first * cos - sign * second * sin, second * cos + sign * first * sin), -1)
    return turned.to(heads.dtype)


def _spread(kv: Tensor, num_query: int) -> tuple[Tensor, Tensor]:
    """Keys and values [J, T, N, d]: each query head its own."""
    keys, values = kv.chunk(2, 2)
    groups = num_query // keys.shape[2]
    return keys.repeat_interleave(groups, 2), values.repeat_interleave(groups, 2)
