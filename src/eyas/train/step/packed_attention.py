"""Causal attention inside each row of a packed sequence, with its log-sum-exp, forward and backward.

On a GPU one flash kernel over all rows; elsewhere row by row with the CPU's flash kernel, or the reference.
Shapes: T positions, N query heads, M key/value heads, d head width.
"""

from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor

from eyas.models.states import RowLayout
from eyas.train.step.row_ops import wide_of

_FLASH_DTYPES = (torch.float16, torch.bfloat16)


def attend_rows(query: Tensor, key: Tensor, value: Tensor, packed: RowLayout, scale: float) -> tuple[Tensor, Tensor]:
    """Attention output [T, N, d] and log-sum-exp [N, T] fp32 (fp64 for fp64).

    Args:
        query: [T, N, d].
        key, value: [T, M, d]; N is a multiple of M.
        packed: whose rows they are.
        scale: factor on the dot products.
    """
    if _has_flash(query):
        starts, longest = packed.starts, packed.longest
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            query, key, value, starts, starts, longest, longest, 0.0, True, False, scale=scale
        )
        assert lse.shape == (query.shape[1], query.shape[0]), f"log-sum-exp of the flash kernel is {tuple(lse.shape)}"
        return out, lse
    out, lse = torch.empty_like(query), query.new_empty(query.shape[1], len(query), dtype=wide_of(query))
    for rows in _slices(packed):
        out[rows], lse[:, rows] = _one_row(query[rows], key[rows], value[rows], scale)
    return out, lse


def attend_rows_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, packed: RowLayout, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value.

    `out` and `lse` may be those of a softmax over more keys than these (`UnrolledAttention`): the weights are then
    those of the whole softmax, as its gradient needs.
    """
    if _has_flash(query):
        starts, longest = packed.starts, packed.longest
        unused = torch.zeros(2, dtype=torch.uint64, device=query.device)  # the random state of dropout, which is off
        grads = torch.ops.aten._flash_attention_backward(
            grad, query, key, value, out, lse, starts, starts, longest, longest, 0.0, True, unused, unused, scale=scale
        )
        return cast(tuple[Tensor, Tensor, Tensor], tuple(grads))
    grads = tuple(torch.empty_like(x) for x in (query, key, value))
    for rows in _slices(packed):
        parts = _one_row_backward(
            grad[rows], query[rows], key[rows], value[rows], out[rows], lse[:, rows], scale
        )  # fmt: skip
        for whole, part in zip(grads, parts, strict=True):
            whole[rows] = part
    return grads


def _has_flash(query: Tensor) -> bool:
    return query.device.type == "cuda" and query.dtype in _FLASH_DTYPES and query.shape[-1] % 8 == 0


def _slices(packed: RowLayout) -> list[slice]:
    return [slice(begin, end) for begin, end in pairwise(packed.starts.tolist()) if begin < end]


def _one_row(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """[S, N, d] and [N, S] of one row."""
    query, key, value = _as_heads(query, key, value)
    if query.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, True, scale=scale)
        return out[0].transpose(0, 1), lse[0]
    scores = _scores(query, key, scale)
    lse = scores.logsumexp(-1)
    out = (scores - lse.unsqueeze(-1)).exp().to(value.dtype) @ value
    return out[0].transpose(0, 1), lse[0]


def _one_row_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, ...]:
    num_kv = key.shape[1]
    query, key, value = _as_heads(query, key, value)
    grad, out, lse = grad.transpose(0, 1)[None], out.transpose(0, 1)[None], lse[None]
    if query.device.type == "cpu":
        grads: tuple[Any, ...] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad.contiguous(), query, key, value, out.contiguous(), lse.contiguous(), 0.0, True, scale=scale
        )
    else:
        weights = (_scores(query, key, scale) - lse.unsqueeze(-1)).exp()
        mean = (grad.to(lse.dtype) * out.to(lse.dtype)).sum(-1, keepdim=True)
        grad_scores = weights * ((grad @ value.transpose(-1, -2)).to(lse.dtype) - mean) * scale
        grads = (
            grad_scores.to(key.dtype) @ key,
            grad_scores.to(query.dtype).transpose(-1, -2) @ query,
            weights.to(grad.dtype).transpose(-1, -2) @ grad,
        )
    grad_query, *others = (g[0].transpose(0, 1) for g in grads)
    return grad_query, *(g.unflatten(1, (num_kv, -1)).sum(2) for g in others)


def _as_heads(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """[1, N, S, d] each: every query head its own keys and values."""
    groups = query.shape[1] // key.shape[1]
    return tuple(
        x.repeat_interleave(times, 1).transpose(0, 1)[None] for x, times in ((query, 1), (key, groups), (value, groups))
    )


def _scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    scores = (query @ key.transpose(-1, -2)).to(wide_of(query)) * scale
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(hidden, float("-inf"))
