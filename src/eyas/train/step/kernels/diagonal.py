# mypy: ignore-errors
# Triton compiles these functions from their source: annotations mean Triton types, not Python ones.
"""The diagonal part of training-time-test attention, merged into a flash attention's output through its log-sum-exp.

At step j, index t sees, besides the step-0 keys, the keys of steps 1 … j at index t itself. Shapes: T positions, N
query heads, M key/value heads, G = N / M, d head width; kv is [steps, T, 2M, d], keys before values.
"""

import triton
import triton.language as tl


@triton.jit
def merge_forward_kernel(
    q_ptr, kv_ptr, out_ptr, lse_ptr, scale, T,
    J: tl.constexpr, M: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Fold J diagonal keys into out [T, N, d] and lse [N, T], in place. A program: one position, one key/value head."""
    t = tl.program_id(0).to(tl.int64)
    m = tl.program_id(1)
    g = tl.arange(0, GP)
    c = tl.arange(0, DP)
    heads = m * G + g
    ok = (g < G)[:, None] & (c < D)[None, :]
    at = (t * M * G + heads)[:, None] * D + c[None, :]
    q = tl.load(q_ptr + at, mask=ok, other=0.0).to(tl.float32)
    out = tl.load(out_ptr + at, mask=ok, other=0.0).to(tl.float32)
    lse = tl.load(lse_ptr + heads.to(tl.int64) * T + t, mask=g < G, other=0.0)
    peak, total = lse, tl.full([GP], 1.0, tl.float32)
    for i in range(J):
        key = ((i * T + t) * 2 * M + m) * D + c
        k = tl.load(kv_ptr + key, mask=c < D, other=0.0).to(tl.float32)
        v = tl.load(kv_ptr + key + M * D, mask=c < D, other=0.0).to(tl.float32)
        score = tl.sum(q * k[None, :], 1) * scale
        higher = tl.maximum(peak, score)
        keep, weight = tl.exp(peak - higher), tl.exp(score - higher)
        out = out * keep[:, None] + weight[:, None] * v[None, :]
        total = total * keep + weight
        peak = higher
    tl.store(out_ptr + at, (out / total[:, None]).to(out_ptr.dtype.element_ty), mask=ok)
    tl.store(lse_ptr + heads.to(tl.int64) * T + t, peak + tl.log(total), mask=g < G)


@triton.jit
def merge_backward_kernel(
    q_ptr, kv_ptr, out_ptr, lse_ptr, grad_out_ptr, grad_q_ptr, grad_kv_ptr, scale, T,
    J: tl.constexpr, M: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """Gradients through the diagonal keys: added to grad_q [T, N, d], written to grad_kv [J, T, 2M, d].

    out and lse are the merged ones: exp(score - lse) is then the weight in the whole softmax.
    """
    t = tl.program_id(0).to(tl.int64)
    m = tl.program_id(1)
    g = tl.arange(0, GP)
    c = tl.arange(0, DP)
    heads = m * G + g
    ok = (g < G)[:, None] & (c < D)[None, :]
    at = (t * M * G + heads)[:, None] * D + c[None, :]
    q = tl.load(q_ptr + at, mask=ok, other=0.0).to(tl.float32)
    out = tl.load(out_ptr + at, mask=ok, other=0.0).to(tl.float32)
    grad_out = tl.load(grad_out_ptr + at, mask=ok, other=0.0).to(tl.float32)
    grad_q = tl.load(grad_q_ptr + at, mask=ok, other=0.0).to(tl.float32)
    lse = tl.load(lse_ptr + heads.to(tl.int64) * T + t, mask=g < G, other=0.0)
    mean = tl.sum(grad_out * out, 1)
    for i in range(J):
        key = ((i * T + t) * 2 * M + m) * D + c
        k = tl.load(kv_ptr + key, mask=c < D, other=0.0).to(tl.float32)
        v = tl.load(kv_ptr + key + M * D, mask=c < D, other=0.0).to(tl.float32)
        weight = tl.where(g < G, tl.exp(tl.sum(q * k[None, :], 1) * scale - lse), 0.0)
        grad_score = weight * (tl.sum(grad_out * v[None, :], 1) - mean) * scale
        grad_q += grad_score[:, None] * k[None, :]
        kind = grad_kv_ptr.dtype.element_ty
        tl.store(grad_kv_ptr + key, tl.sum(grad_score[:, None] * q, 0).to(kind), mask=c < D)
        tl.store(grad_kv_ptr + key + M * D, tl.sum(weight[:, None] * grad_out, 0).to(kind), mask=c < D)
    tl.store(grad_q_ptr + at, grad_q.to(grad_q_ptr.dtype.element_ty), mask=ok)
