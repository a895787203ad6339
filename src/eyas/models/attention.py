"""The draft's two attentions: over a cache (drafting), and step-0 keys plus a diagonal (training-time test).

Shapes: B sequences, N query heads, M key/value heads (N a multiple of M), T positions, S new positions, C cached
positions, d head width, e value width.

In training-time test, step j at index t sees the step-0 keys at indices ≤ t and, at index t alone, the keys of steps
1 … j. So one causal flash attention plus j numbers per query is all the work: the two parts are merged through their
log-sum-exp. The backward hands flash attention the *merged* output and log-sum-exp, which makes its probabilities, and
with them the gradients of queries and step-0 keys and values, exact.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

# (layer index, query [B, N, T, d], key [B, M, T, d], value [B, M, T, e]) -> [B, N, T, e]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


Backend = Literal["auto", "eager", "flash"]


def cached_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    scale: float,
    window: int | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Causal attention of the last S positions over all C + S.

    Args:
        query: [B, N, S, d], the newest positions.
        keys, values: [B, M, C + S, d or e], oldest first.
        scale: factor on the dot products.
        window: a query sees this many positions, itself included; None for all.
        mask: [S, C + S] bool, what each query sees, in place of all that.

    Returns:
        [B, N, S, e].
    """
    num_new, num_all = query.shape[2], keys.shape[2]
    is_causal = mask is None and num_new == num_all and num_new > 1 and (window is None or num_all <= window)
    if mask is None and not is_causal and (num_new > 1 or (window is not None and num_all > window)):
        mask = _visible(num_new, num_all, window, query.device)
    return F.scaled_dot_product_attention(
        query, _spread(keys, query), _spread(values, query), attn_mask=mask, is_causal=is_causal, scale=scale
    )


def ttt_attention(
    query: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    *,
    scale: float,
    window: int | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """Attention of one training-time-test step, from all positions at once.

    Args:
        query: [B, N, T, d] of step j.
        keys, values: j + 1 tensors [B, M, T, d or e] of steps 0 … j.
        scale: factor on the dot products.
        window: sliding window in positions; step j at index t stands at position t + j. None for none.
        backend: `flash` does no work that is not needed; `eager` builds all T × T scores (the reference; also the
            only one for sliding windows shorter than T, and for devices without a flash kernel that returns the
            log-sum-exp); `auto` takes flash where it can.

    Returns:
        [B, N, T, e].
    """
    step, width = len(keys) - 1, values[0].shape[-1]
    if width < query.shape[-1] and backend != "eager":  # MLA: flash wants values as wide as keys
        padded = [F.pad(value, (0, query.shape[-1] - width)) for value in values]
        return ttt_attention(query, keys, padded, scale=scale, window=window, backend=backend)[..., :width]
    spread_keys, spread_values = [_spread(k, query) for k in keys], [_spread(v, query) for v in values]
    has_window = window is not None and query.shape[2] + step > window
    if backend == "eager" or has_window or (backend == "auto" and not _flash_fits(query, values[0])):
        return _eager(query, spread_keys, spread_values, scale, window if has_window else None)
    if step == 0:
        return F.scaled_dot_product_attention(query, spread_keys[0], spread_values[0], is_causal=True, scale=scale)
    diagonal_keys, diagonal_values = torch.stack(spread_keys[1:], 3), torch.stack(spread_values[1:], 3)
    operands = (query, spread_keys[0], spread_values[0], diagonal_keys, diagonal_values)
    merged = _CausalPlusDiagonal.apply(*operands, scale)  # type: ignore[no-untyped-call]
    return cast(Tensor, merged)


def _eager(query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], scale: float, window: int | None) -> Tensor:
    num, step = query.shape[2], len(keys) - 1
    scores = query @ keys[0].transpose(-1, -2) * scale
    index = torch.arange(num, device=query.device)
    hidden = index[None, :] > index[:, None]
    if window is not None:
        hidden = hidden | (index[:, None] + step - index[None, :] >= window)
    scores = scores.masked_fill(hidden, float("-inf"))
    diagonal = [(query * k).sum(-1, keepdim=True) * scale for k in keys[1:]]
    weights = torch.cat([scores, *diagonal], -1).softmax(-1, dtype=_wide(query.dtype)).to(query.dtype)
    out = weights[..., :num] @ values[0]
    for i, value in enumerate(values[1:]):
        out = out + weights[..., num + i, None] * value
    return out


class _CausalPlusDiagonal(torch.autograd.Function):
    """Flash attention over step-0 keys merged with the diagonal keys. Diagonals are [B, N, T, j, d or e]."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        diagonal_keys: Tensor,
        diagonal_values: Tensor,
        scale: float,
    ) -> Tensor:
        causal, causal_lse, ctx.flash = _flash_forward(query, key, value, scale)
        scores = _diagonal_scores(query, diagonal_keys, scale)
        lse = torch.logaddexp(causal_lse, scores.logsumexp(-1))
        share = (causal_lse - lse).exp().unsqueeze(-1)
        weights = (scores - lse.unsqueeze(-1)).exp()
        out = causal * share + (weights.unsqueeze(-1) * diagonal_values).sum(-2)
        out = out.to(query.dtype).contiguous()
        ctx.save_for_backward(query, key, value, diagonal_keys, diagonal_values, out, lse)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, diagonal_keys, diagonal_values, out, lse = ctx.saved_tensors
        scale: float = ctx.scale
        grad_out = grad_out.contiguous()
        grad_query, grad_key, grad_value = _flash_backward(grad_out, query, key, value, out, lse, scale, ctx.flash)
        weights = (_diagonal_scores(query, diagonal_keys, scale) - lse.unsqueeze(-1)).exp()
        mean = (grad_out.to(lse.dtype) * out.to(lse.dtype)).sum(-1, keepdim=True)
        grad_weights = (grad_out.unsqueeze(-2).to(lse.dtype) * diagonal_values.to(lse.dtype)).sum(-1)
        grad_scores = (weights * (grad_weights - mean) * scale).unsqueeze(-1)
        grad_query = grad_query + (grad_scores * diagonal_keys.to(lse.dtype)).sum(-2).to(query.dtype)
        grad_diagonal_keys = (grad_scores * query.unsqueeze(-2).to(lse.dtype)).to(query.dtype)
        grad_diagonal_values = (weights.unsqueeze(-1) * grad_out.unsqueeze(-2).to(lse.dtype)).to(query.dtype)
        return grad_query, grad_key, grad_value, grad_diagonal_keys, grad_diagonal_values, None


def _diagonal_scores(query: Tensor, diagonal_keys: Tensor, scale: float) -> Tensor:
    wide = _wide(query.dtype)
    return (query.unsqueeze(-2).to(wide) * diagonal_keys.to(wide)).sum(-1) * scale


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype to sum in: fp32, or fp64 for fp64 inputs."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _flash_fits(query: Tensor, value: Tensor) -> bool:
    if query.shape[-1] != value.shape[-1]:
        return False
    if query.device.type == "cpu":
        return True
    return query.device.type == "cuda" and query.dtype in (torch.float16, torch.bfloat16) and query.shape[-1] % 8 == 0


def _flash_forward(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
    """Causal attention, its log-sum-exp [B, N, T], and what the backward of this device's kernel wants besides."""
    ops = torch.ops.aten
    if query.device.type == "cpu":
        out, lse = ops._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, True, scale=scale)
        return out, lse, ()
    out, lse, *rest = ops._scaled_dot_product_flash_attention(query, key, value, 0.0, True, scale=scale)
    cum_query, cum_key, max_query, max_key, seed, offset = rest[:6]
    return out, lse, (cum_query, cum_key, max_query, max_key, 0.0, True, seed, offset)


def _flash_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    rest: tuple[Any, ...],
) -> tuple[Tensor, Tensor, Tensor]:
    ops = torch.ops.aten
    if query.device.type == "cpu":
        grads = ops._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_out, query, key, value, out, lse, 0.0, True, scale=scale
        )
    else:
        grads = ops._scaled_dot_product_flash_attention_backward(
            grad_out, query, key, value, out, lse, *rest, scale=scale
        )
    return cast(tuple[Tensor, Tensor, Tensor], tuple(grads))


def _visible(num_new: int, num_all: int, window: int | None, device: torch.device) -> Tensor:
    """[S, C + S], true where the new position may look."""
    query_index = torch.arange(num_all - num_new, num_all, device=device)[:, None]
    key_index = torch.arange(num_all, device=device)[None, :]
    visible = key_index <= query_index
    return visible if window is None else visible & (query_index - key_index < window)


def _spread(heads: Tensor, query: Tensor) -> Tensor:
    """Key/value heads repeated so that each query head has its own."""
    groups = query.shape[1] // heads.shape[1]
    return heads if groups == 1 else heads.repeat_interleave(groups, 1)
