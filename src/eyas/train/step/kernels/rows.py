# mypy: ignore-errors
# Triton compiles these functions from their source: annotations mean Triton types, not Python ones.
"""What is done to each position's row between two matrix products: RMS norm (with the residual's sum), SwiGLU, RoPE.

Sums are fp32 whatever the rows' dtype. Shapes: T rows, H width, W MLP width, A = N + 2M heads of width d.
"""

import triton
import triton.language as tl


@triton.jit
def norm_forward_kernel(x_ptr, residual_ptr, w_ptr, sum_ptr, out_ptr, eps, H, ADD: tl.constexpr, BLOCK: tl.constexpr):
    """out = rmsnorm(x [+ residual]) * w; the sum is stored too, rounded, and the norm is that of the rounded sum."""
    k = tl.arange(0, BLOCK)
    ok = k < H
    at = tl.program_id(0).to(tl.int64) * H + k
    x = tl.load(x_ptr + at, mask=ok, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(residual_ptr + at, mask=ok, other=0.0).to(tl.float32)
        rounded = x.to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + at, rounded, mask=ok)
        x = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / H + eps)
    w = tl.load(w_ptr + k, mask=ok, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, (x * scale * w).to(out_ptr.dtype.element_ty), mask=ok)


@triton.jit
def norm_backward_kernel(
    sum_ptr, w_ptr, grad_out_ptr, grad_sum_ptr, grad_x_ptr, grad_w_ptr, eps, T, H,
    ROWS: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradient of the sum [T, H], and of w as one partial sum per program [P, H]."""
    k = tl.arange(0, BLOCK)
    ok = k < H
    w = tl.load(w_ptr + k, mask=ok, other=0.0).to(tl.float32)
    grad_w = tl.zeros([BLOCK], tl.float32)
    first = tl.program_id(0) * ROWS
    for i in range(ROWS):
        row = first + i
        here = ok & (row < T)
        at = row.to(tl.int64) * H + k
        x = tl.load(sum_ptr + at, mask=here, other=0.0).to(tl.float32)
        grad_out = tl.load(grad_out_ptr + at, mask=here, other=0.0).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / H + eps)
        normed = x * scale
        grad_w += grad_out * normed
        inner = grad_out * w
        grad = (inner - normed * (tl.sum(inner * normed, 0) / H)) * scale
        if ADD:
            grad += tl.load(grad_sum_ptr + at, mask=here, other=0.0).to(tl.float32)
        tl.store(grad_x_ptr + at, grad.to(grad_x_ptr.dtype.element_ty), mask=here)
    tl.store(grad_w_ptr + tl.program_id(0).to(tl.int64) * H + k, grad_w, mask=ok)


@triton.jit
def swiglu_forward_kernel(gate_up_ptr, out_ptr, W, BLOCK: tl.constexpr):
    """out [T, W] = silu(gate) * up of gate_up [T, 2I]."""
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = k < W
    row = tl.program_id(0).to(tl.int64)
    gate = tl.load(gate_up_ptr + row * 2 * W + k, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * W + W + k, mask=ok, other=0.0).to(tl.float32)
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * W + k, out.to(out_ptr.dtype.element_ty), mask=ok)


@triton.jit
def swiglu_backward_kernel(gate_up_ptr, grad_ptr, out_ptr, grad_gate_up_ptr, W, BLOCK: tl.constexpr):
    """The output once more, and the gradient of gate_up from that of the output."""
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = k < W
    row = tl.program_id(0).to(tl.int64)
    gate = tl.load(gate_up_ptr + row * 2 * W + k, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * W + W + k, mask=ok, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + row * W + k, mask=ok, other=0.0).to(tl.float32)
    share = 1.0 / (1.0 + tl.exp(-gate))
    silu = gate * share
    tl.store(out_ptr + row * W + k, (silu * up).to(out_ptr.dtype.element_ty), mask=ok)
    grad_gate = grad * up * share * (1.0 + gate * (1.0 - share))
    kind = grad_gate_up_ptr.dtype.element_ty
    tl.store(grad_gate_up_ptr + row * 2 * W + k, grad_gate.to(kind), mask=ok)
    tl.store(grad_gate_up_ptr + row * 2 * W + W + k, (grad * silu).to(kind), mask=ok)


@triton.jit(do_not_specialize=["offset"])  # one compilation for all steps
def rope_forward_kernel(
    qkv_ptr, cos_ptr, sin_ptr, position_ptr, offset, q_ptr, kv_ptr,
    N: tl.constexpr, M: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """q [T, N, d] and k, v [T, 2M, d] of qkv [T, N + 2M, d]; q and k turned to position + offset."""
    t = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, HEADS)[:, None]
    c = tl.arange(0, HALF)[None, :]
    ok = h < N + 2 * M
    at = qkv_ptr + (t * (N + 2 * M) + h) * 2 * HALF + c
    first = tl.load(at, mask=ok, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=ok, other=0.0).to(tl.float32)
    angle = (tl.load(position_ptr + t) + offset).to(tl.int64) * HALF + c
    turns = h < N + M
    cos = tl.where(turns, tl.load(cos_ptr + angle), 1.0)
    sin = tl.where(turns, tl.load(sin_ptr + angle), 0.0)
    kind = q_ptr.dtype.element_ty
    new_first, new_second = (first * cos - second * sin).to(kind), (second * cos + first * sin).to(kind)
    is_query = h < N
    to_q = q_ptr + (t * N + h) * 2 * HALF + c
    to_kv = kv_ptr + (t * 2 * M + h - N) * 2 * HALF + c
    tl.store(to_q, new_first, mask=is_query & (c < HALF))
    tl.store(to_q + HALF, new_second, mask=is_query & (c < HALF))
    tl.store(to_kv, new_first, mask=ok & (h >= N) & (c < HALF))
    tl.store(to_kv + HALF, new_second, mask=ok & (h >= N) & (c < HALF))


@triton.jit(do_not_specialize=["offset"])
def rope_backward_kernel(
    grad_q_ptr, grad_kv_ptr, cos_ptr, sin_ptr, position_ptr, offset, grad_ptr,
    N: tl.constexpr, M: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Gradient of qkv: what came is turned back."""
    t = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, HEADS)[:, None]
    c = tl.arange(0, HALF)[None, :]
    ok = (h < N + 2 * M) & (c < HALF)
    is_query = (h < N) & (c < HALF)
    from_q = grad_q_ptr + (t * N + h) * 2 * HALF + c
    from_kv = grad_kv_ptr + (t * 2 * M + h - N) * 2 * HALF + c
    is_kv = ok & (h >= N)
    first = tl.load(from_q, mask=is_query, other=0.0).to(tl.float32)
    first += tl.load(from_kv, mask=is_kv, other=0.0).to(tl.float32)
    second = tl.load(from_q + HALF, mask=is_query, other=0.0).to(tl.float32)
    second += tl.load(from_kv + HALF, mask=is_kv, other=0.0).to(tl.float32)
    angle = (tl.load(position_ptr + t) + offset).to(tl.int64) * HALF + c
    turns = h < N + M
    cos = tl.where(turns, tl.load(cos_ptr + angle), 1.0)
    sin = tl.where(turns, tl.load(sin_ptr + angle), 0.0)
    kind = grad_ptr.dtype.element_ty
    at = grad_ptr + (t * (N + 2 * M) + h) * 2 * HALF + c
    tl.store(at, (first * cos + second * sin).to(kind), mask=ok)
    tl.store(at + HALF, (second * cos - first * sin).to(kind), mask=ok)
