# mypy: ignore-errors
"""The four matrix kernels of a decoder block: qkv + rope + cache, output + residual, gate-up + SwiGLU, head + argmax.

Shapes: N output features, C input features, M rows, H query heads, G key/value heads, D head width, L cache length.
Weights of pairs (the two halves of a rotary pair; gate and up of one feature) lie in neighbouring rows: `cuda_weights`.
"""

import triton
import triton.language as tl

from eyas.engine.kernels.rows import first_weights, rows, split_pairs, wait_for_inputs


@triton.jit
def qkv_kernel(
    w_ptr, w_stride, first_ptr, first_stride, index_ptr, first_g_ptr, second_ptr, second_stride, second_g_ptr,
    eps, position_ptr, offset, cos_ptr, sin_ptr, q_ptr, k_ptr, v_ptr,
    C: tl.constexpr, H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, L: tl.constexpr,
    M: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    TWO: tl.constexpr, INDIRECT: tl.constexpr, PDL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """q [M, H, D], turned; keys (turned) and values into the caches [G, L, D] at position + offset + m."""
    N: tl.constexpr = (H + 2 * G) * D
    row0 = tl.program_id(0) * BN
    w_first = first_weights(w_ptr, w_stride, row0, N, C, BN, BK, STAGES)
    w_second = w_first
    if TWO:
        w_second = first_weights(w_ptr + C, w_stride, row0, N, C, BN, BK, STAGES)
    wait_for_inputs(PDL)
    # Angles are asked for before the products: after them their latency would stand alone.
    HALF: tl.constexpr = D // 2
    pair = row0 // 2 + tl.arange(0, BN // 2)
    head = (pair // HALF)[:, None]
    j = (pair % HALF)[:, None]
    m = tl.arange(0, MP)[None, :]
    position = tl.load(position_ptr) + offset + m
    ok = (pair[:, None] < N // 2) & (m < M)
    is_turned = head < H + G
    cos = tl.load(cos_ptr + position * HALF + j, mask=ok & is_turned, other=1.0)
    sin = tl.load(sin_ptr + position * HALF + j, mask=ok & is_turned, other=0.0)
    y = rows(
        w_first, w_ptr, w_stride, row0, N, first_ptr, first_stride, index_ptr, first_g_ptr, eps,
        C, M, MP, BN, BK, True, INDIRECT, STAGES,
    )  # fmt: skip
    if TWO:
        y += rows(
            w_second, w_ptr + C, w_stride, row0, N, second_ptr, second_stride, index_ptr, second_g_ptr, eps,
            C, M, MP, BN, BK, True, False, STAGES,
        )  # fmt: skip
    a, b = split_pairs(y)
    low = (a * cos - b * sin).to(q_ptr.dtype.element_ty)
    high = (b * cos + a * sin).to(q_ptr.dtype.element_ty)
    q_at = q_ptr + (m * H + head) * D + j
    tl.store(q_at, low, mask=ok & (head < H))
    tl.store(q_at + HALF, high, mask=ok & (head < H))
    k_at = k_ptr + ((head - H) * L + position) * D + j
    is_key = ok & (head >= H) & is_turned
    tl.store(k_at, low, mask=is_key)
    tl.store(k_at + HALF, high, mask=is_key)
    v_at = v_ptr + ((head - H - G) * L + position) * D + j
    is_value = ok & (head >= H + G)
    tl.store(v_at, low, mask=is_value)
    tl.store(v_at + HALF, high, mask=is_value)


@triton.jit
def linear_kernel(
    w_ptr, x_ptr, x_stride, residual_ptr, residual_stride, out_ptr, out_stride, N,
    C: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    ADD: tl.constexpr, PDL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """out [M, N] = x @ W^T (+ residual)."""
    row0 = tl.program_id(0) * BN
    w_first = first_weights(w_ptr, C, row0, N, C, BN, BK, STAGES)
    wait_for_inputs(PDL)
    n = (row0 + tl.arange(0, BN))[:, None]
    m = tl.arange(0, MP)[None, :]
    ok = (n < N) & (m < M)
    residual = 0.0
    if ADD:
        residual = tl.load(residual_ptr + m * residual_stride + n, mask=ok, other=0.0)
    y = rows(w_first, w_ptr, C, row0, N, x_ptr, x_stride, x_ptr, x_ptr, 0.0, C, M, MP, BN, BK, False, False, STAGES)
    y = y.to(out_ptr.dtype.element_ty)
    if ADD:
        y += residual
    tl.store(out_ptr + m * out_stride + n, y, mask=ok)


@triton.jit
def gate_up_kernel(
    w_ptr, x_ptr, x_stride, g_ptr, eps, out_ptr, N,
    C: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PDL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """out [M, N/2] = silu(gate) * up of the normed x."""
    row0 = tl.program_id(0) * BN
    w_first = first_weights(w_ptr, C, row0, N, C, BN, BK, STAGES)
    wait_for_inputs(PDL)
    y = rows(w_first, w_ptr, C, row0, N, x_ptr, x_stride, x_ptr, g_ptr, eps, C, M, MP, BN, BK, True, False, STAGES)
    gate, up = split_pairs(y)
    i = (row0 // 2 + tl.arange(0, BN // 2))[:, None]
    m = tl.arange(0, MP)[None, :]
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + m * (N // 2) + i, out.to(out_ptr.dtype.element_ty), mask=(i < N // 2) & (m < M))


@triton.jit
def head_kernel(
    w_ptr, x_ptr, x_stride, index_ptr, g_ptr, eps, best_ptr, best_id_ptr, N, num_parts,
    C: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    INDIRECT: tl.constexpr, PDL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Best logit and its lowest id among BN vocabulary rows, for each x: parts [M, num_parts]."""
    row0 = tl.program_id(0) * BN
    w_first = first_weights(w_ptr, C, row0, N, C, BN, BK, STAGES)
    wait_for_inputs(PDL)
    y = rows(
        w_first, w_ptr, C, row0, N, x_ptr, x_stride, index_ptr, g_ptr, eps, C, M, MP, BN, BK, True, INDIRECT, STAGES
    )
    # Rounded as a framework's logits are, so that ties in bf16 fall the same way: to the lowest id.
    y = y.to(w_ptr.dtype.element_ty).to(tl.float32)
    n = (row0 + tl.arange(0, BN))[:, None]
    y = tl.where(n < N, y, float("-inf"))
    best = tl.max(y, axis=0)
    best_id = tl.min(tl.where(y == best[None, :], n, N), axis=0)
    m = tl.arange(0, MP)
    tl.store(best_ptr + m * num_parts + tl.program_id(0), best, mask=m < M)
    tl.store(best_id_ptr + m * num_parts + tl.program_id(0), best_id, mask=m < M)
