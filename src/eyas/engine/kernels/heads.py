# mypy: ignore-errors
"""Between the projection of q, k, v and attention where a family has more there than Llama: bias, head norms, rotation.

Shapes: M rows, H query heads, G key/value heads, D head width, L cache length.
"""

import triton
import triton.language as tl

from eyas.engine.kernels.rows import let_next_start, wait_for_inputs


@triton.jit
def heads_kernel(
    raw_ptr, bias_ptr, norms_ptr, eps, position_ptr, offset, cos_ptr, sin_ptr, q_ptr, k_ptr, v_ptr,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BH: tl.constexpr, L: tl.constexpr,
    BIAS: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One head of one row of raw [M, (H + 2G) * D], pairs side by side: to q [M, H, D] or the caches [G, L, D].

    bias: as raw's columns; norms [2, D] of queries and keys, in natural order.
    """
    HALF: tl.constexpr = D // 2
    m = tl.program_id(0)
    head = tl.program_id(1)
    j = tl.arange(0, BH)
    ok = j < HALF
    wait_for_inputs(PDL)
    let_next_start(PDL)
    at = head * D + 2 * j
    row = raw_ptr + m * ((H + 2 * G) * D)
    low = tl.load(row + at, mask=ok, other=0.0).to(tl.float32)
    high = tl.load(row + at + 1, mask=ok, other=0.0).to(tl.float32)
    if BIAS:
        low += tl.load(bias_ptr + at, mask=ok, other=0.0).to(tl.float32)
        high += tl.load(bias_ptr + at + 1, mask=ok, other=0.0).to(tl.float32)
    position = tl.load(position_ptr) + offset + m
    if head < H + G:
        if NORM:
            g = norms_ptr + (head >= H).to(tl.int32) * D + j
            scale = tl.rsqrt((tl.sum(low * low) + tl.sum(high * high)) / D + eps)
            low = low * scale * tl.load(g, mask=ok, other=0.0).to(tl.float32)
            high = high * scale * tl.load(g + HALF, mask=ok, other=0.0).to(tl.float32)
        cos = tl.load(cos_ptr + position * HALF + j, mask=ok, other=1.0)
        sin = tl.load(sin_ptr + position * HALF + j, mask=ok, other=0.0)
        a = low * cos - high * sin
        high = high * cos + low * sin
        low = a
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    if head < H:
        out = q_ptr + (m * H + head) * D + j
        tl.store(out, low.to(dtype), mask=ok)
        tl.store(out + HALF, high.to(dtype), mask=ok)
    elif head < H + G:
        out = k_ptr + ((head - H) * L + position) * D + j
        tl.store(out, low.to(dtype), mask=ok)
        tl.store(out + HALF, high.to(dtype), mask=ok)
    else:
        out = v_ptr + ((head - H - G) * L + position) * D + j
        tl.store(out, low.to(dtype), mask=ok)
        tl.store(out + HALF, high.to(dtype), mask=ok)
