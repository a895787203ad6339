# mypy: ignore-errors
"""The four matrix kernels of a decoder block: qkv + rope + cache, output + residual, gate-up + SwiGLU, head + argmax.

Shapes: N output features, C input features, M rows, H query heads, G key/value heads, D head width, L cache length.
Weights of pairs (the two halves of a rotary pair; gate and up of one feature) lie in neighbouring rows:
`captured.captured_weights`.
Each kernel: ask for weights, wait, multiply by one of the ways of `rows`, finish the tile. By way 3 a program finishes
many tiles.
"""

import triton
import triton.language as tl

from eyas.engine.kernels.rows import (
    first_weights,
    let_next_start,
    next_weights,
    row_prepared,
    row_product,
    rows,
    split_pairs,
    wait_for_inputs,
)


@triton.jit
def _angles(
    row0, position, cos_ptr, sin_ptr, N: tl.constexpr, H: tl.constexpr, G: tl.constexpr, D: tl.constexpr,
    M: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """cos and sin [BN/2, MP] of the pairs of a tile; values are not turned."""
    HALF: tl.constexpr = D // 2
    pair = (row0 // 2 + tl.arange(0, BN // 2))[:, None]
    m = tl.arange(0, MP)[None, :]
    ok = (pair < (H + G) * HALF) & (m < M)
    at = (position + m) * HALF + pair % HALF
    return tl.load(cos_ptr + at, mask=ok, other=1.0), tl.load(sin_ptr + at, mask=ok, other=0.0)


@triton.jit
def _finish_qkv(
    y, angles, row0, position, q_ptr, k_ptr, v_ptr, N: tl.constexpr, H: tl.constexpr, G: tl.constexpr,
    D: tl.constexpr, L: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = D // 2
    pair = row0 // 2 + tl.arange(0, BN // 2)
    head = (pair // HALF)[:, None]
    j = (pair % HALF)[:, None]
    m = tl.arange(0, MP)[None, :]
    ok = (pair[:, None] < N // 2) & (m < M)
    is_turned = head < H + G
    at = position + m
    cos, sin = angles
    a, b = split_pairs(y)
    low = (a * cos - b * sin).to(q_ptr.dtype.element_ty)
    high = (b * cos + a * sin).to(q_ptr.dtype.element_ty)
    q_at = q_ptr + (m * H + head) * D + j
    tl.store(q_at, low, mask=ok & (head < H))
    tl.store(q_at + HALF, high, mask=ok & (head < H))
    k_at = k_ptr + ((head - H) * L + at) * D + j
    is_key = ok & (head >= H) & is_turned
    tl.store(k_at, low, mask=is_key)
    tl.store(k_at + HALF, high, mask=is_key)
    v_at = v_ptr + ((head - H - G) * L + at) * D + j
    is_value = ok & (head >= H + G)
    tl.store(v_at, low, mask=is_value)
    tl.store(v_at + HALF, high, mask=is_value)


@triton.jit
def qkv_kernel(
    w_ptr, w_stride, first_ptr, first_stride, index_ptr, first_g_ptr, second_ptr, second_stride, second_g_ptr,
    eps, position_ptr, offset, cos_ptr, sin_ptr, q_ptr, k_ptr, v_ptr,
    C: tl.constexpr, H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, L: tl.constexpr,
    M: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BK2: tl.constexpr, S: tl.constexpr,
    NORM: tl.constexpr, TWO: tl.constexpr, INDIRECT: tl.constexpr, PDL: tl.constexpr, WAY: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """q [M, H, D], turned; keys (turned) and values into the caches [G, L, D] at position + offset + m."""
    N: tl.constexpr = (H + 2 * G) * D
    row0 = tl.program_id(0) * BN
    w, w_rest = first_weights(w_ptr, w_stride, row0, N, C, BN, BK, BK2, S, WAY)
    u, u_rest = w, w_rest
    if TWO:
        u, u_rest = first_weights(w_ptr + C, w_stride, row0, N, C, BN, BK, BK2, S, WAY)
    position = tl.load(position_ptr) + offset
    # Asked for before the products: after them their latency would stand alone.
    angles = _angles(row0, position, cos_ptr, sin_ptr, N, H, G, D, M, MP, BN)
    wait_for_inputs(PDL)
    if WAY == 3:
        x, scale = row_prepared(first_ptr, first_stride, index_ptr, first_g_ptr, eps, C, BK, NORM, INDIRECT)
        if TWO:
            z, z_scale = row_prepared(second_ptr, second_stride, index_ptr, second_g_ptr, eps, C, BK, NORM, False)
        step = tl.num_programs(0) * BN
        row = row0
        while row < N:
            w_now, u_now = w, u
            w = next_weights(w_ptr, w_stride, row + step, N, C, BN, BK)
            y = row_product(w_now, x, scale)
            if TWO:
                u = next_weights(w_ptr + C, w_stride, row + step, N, C, BN, BK)
                y += row_product(u_now, z, z_scale)
            its_angles = _angles(row, position, cos_ptr, sin_ptr, N, H, G, D, M, MP, BN)
            _finish_qkv(y, its_angles, row, position, q_ptr, k_ptr, v_ptr, N, H, G, D, L, M, MP, BN)
            row += step
        let_next_start(PDL)
    else:
        if WAY != 2:
            let_next_start(PDL)
        y = rows(
            w, w_rest, w_ptr, w_stride, row0, N, first_ptr, first_stride, index_ptr, first_g_ptr, eps,
            C, M, MP, BN, BK, BK2, S, NORM, INDIRECT, WAY, STAGES,
        )  # fmt: skip
        if TWO:
            y += rows(
                u, u_rest, w_ptr + C, w_stride, row0, N, second_ptr, second_stride, index_ptr, second_g_ptr, eps,
                C, M, MP, BN, BK, BK2, S, NORM, False, WAY, STAGES,
            )  # fmt: skip
        if WAY == 2:
            let_next_start(PDL)
        _finish_qkv(y, angles, row0, position, q_ptr, k_ptr, v_ptr, N, H, G, D, L, M, MP, BN)


@triton.jit
def _finish_linear(
    y, residual, row0, out_ptr, out_stride, N, M: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr, ADD: tl.constexpr
):
    n = (row0 + tl.arange(0, BN))[:, None]
    m = tl.arange(0, MP)[None, :]
    y = y.to(out_ptr.dtype.element_ty)
    if ADD:
        y += residual
    tl.store(out_ptr + m * out_stride + n, y, mask=(n < N) & (m < M))


@triton.jit
def _residual(residual_ptr, stride, row0, N, M: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr, ADD: tl.constexpr):
    residual = 0.0
    if ADD:
        n = (row0 + tl.arange(0, BN))[:, None]
        m = tl.arange(0, MP)[None, :]
        residual = tl.load(residual_ptr + m * stride + n, mask=(n < N) & (m < M), other=0.0)
    return residual


@triton.jit
def linear_kernel(
    w_ptr, x_ptr, x_stride, residual_ptr, residual_stride, out_ptr, out_stride, N,
    C: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BK2: tl.constexpr,
    S: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr, WAY: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """out [M, N] = x @ W^T (+ residual)."""
    row0 = tl.program_id(0) * BN
    w, w_rest = first_weights(w_ptr, C, row0, N, C, BN, BK, BK2, S, WAY)
    wait_for_inputs(PDL)
    if WAY == 3:
        x, scale = row_prepared(x_ptr, x_stride, x_ptr, x_ptr, 0.0, C, BK, False, False)
        step = tl.num_programs(0) * BN
        row = row0
        while row < N:
            residual = _residual(residual_ptr, residual_stride, row, N, M, MP, BN, ADD)
            w_now = w
            w = next_weights(w_ptr, C, row + step, N, C, BN, BK)
            _finish_linear(row_product(w_now, x, scale), residual, row, out_ptr, out_stride, N, M, MP, BN, ADD)
            row += step
        let_next_start(PDL)
    else:
        if WAY != 2:
            let_next_start(PDL)
        # The residual is asked for before the product: after it its latency would stand alone.
        residual = _residual(residual_ptr, residual_stride, row0, N, M, MP, BN, ADD)
        y = rows(
            w, w_rest, w_ptr, C, row0, N, x_ptr, x_stride, x_ptr, x_ptr, 0.0,
            C, M, MP, BN, BK, BK2, S, False, False, WAY, STAGES,
        )  # fmt: skip
        if WAY == 2:
            let_next_start(PDL)
        _finish_linear(y, residual, row0, out_ptr, out_stride, N, M, MP, BN, ADD)


@triton.jit
def _finish_gate_up(y, row0, out_ptr, N, M: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr):
    gate, up = split_pairs(y)
    i = (row0 // 2 + tl.arange(0, BN // 2))[:, None]
    m = tl.arange(0, MP)[None, :]
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + m * (N // 2) + i, out.to(out_ptr.dtype.element_ty), mask=(i < N // 2) & (m < M))


@triton.jit
def gate_up_kernel(
    w_ptr, x_ptr, x_stride, g_ptr, eps, out_ptr, N,
    C: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BK2: tl.constexpr,
    S: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr, WAY: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """out [M, N/2] = silu(gate) * up of the normed x."""
    row0 = tl.program_id(0) * BN
    w, w_rest = first_weights(w_ptr, C, row0, N, C, BN, BK, BK2, S, WAY)
    wait_for_inputs(PDL)
    if WAY == 3:
        x, scale = row_prepared(x_ptr, x_stride, x_ptr, g_ptr, eps, C, BK, NORM, False)
        step = tl.num_programs(0) * BN
        row = row0
        while row < N:
            w_now = w
            w = next_weights(w_ptr, C, row + step, N, C, BN, BK)
            _finish_gate_up(row_product(w_now, x, scale), row, out_ptr, N, M, MP, BN)
            row += step
        let_next_start(PDL)
    else:
        if WAY != 2:
            let_next_start(PDL)
        y = rows(
            w, w_rest, w_ptr, C, row0, N, x_ptr, x_stride, x_ptr, g_ptr, eps,
            C, M, MP, BN, BK, BK2, S, NORM, False, WAY, STAGES,
        )  # fmt: skip
        if WAY == 2:
            let_next_start(PDL)
        _finish_gate_up(y, row0, out_ptr, N, M, MP, BN)


@triton.jit
def _finish_head(
    y, row0, best_ptr, best_id_ptr, N, num_parts, DTYPE: tl.constexpr, M: tl.constexpr, MP: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    # Rounded as a framework's logits are, so that ties in bf16 fall the same way: to the lowest id.
    y = y.to(DTYPE).to(tl.float32)
    n = (row0 + tl.arange(0, BN))[:, None]
    y = tl.where(n < N, y, float("-inf"))
    best = tl.max(y, axis=0)
    best_id = tl.min(tl.where(y == best[None, :], n, N), axis=0)
    m = tl.arange(0, MP)
    tl.store(best_ptr + m * num_parts + row0 // BN, best, mask=m < M)
    tl.store(best_id_ptr + m * num_parts + row0 // BN, best_id, mask=m < M)


@triton.jit
def head_kernel(
    w_ptr, x_ptr, x_stride, index_ptr, g_ptr, eps, best_ptr, best_id_ptr, N, num_parts,
    C: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BK2: tl.constexpr,
    S: tl.constexpr, NORM: tl.constexpr, INDIRECT: tl.constexpr, PDL: tl.constexpr, WAY: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Best logit and its lowest id among BN vocabulary rows, for each x: parts [M, num_parts]."""
    row0 = tl.program_id(0) * BN
    DTYPE: tl.constexpr = w_ptr.dtype.element_ty
    w, w_rest = first_weights(w_ptr, C, row0, N, C, BN, BK, BK2, S, WAY)
    wait_for_inputs(PDL)
    if WAY == 3:
        x, scale = row_prepared(x_ptr, x_stride, index_ptr, g_ptr, eps, C, BK, NORM, INDIRECT)
        step = tl.num_programs(0) * BN
        row = row0
        while row < N:
            w_now = w
            w = next_weights(w_ptr, C, row + step, N, C, BN, BK)
            y = row_product(w_now, x, scale)
            _finish_head(y, row, best_ptr, best_id_ptr, N, num_parts, DTYPE, M, MP, BN)
            row += step
        let_next_start(PDL)
    else:
        if WAY != 2:
            let_next_start(PDL)
        y = rows(
            w, w_rest, w_ptr, C, row0, N, x_ptr, x_stride, index_ptr, g_ptr, eps,
            C, M, MP, BN, BK, BK2, S, NORM, INDIRECT, WAY, STAGES,
        )  # fmt: skip
        if WAY == 2:
            let_next_start(PDL)
        _finish_head(y, row0, best_ptr, best_id_ptr, N, num_parts, DTYPE, M, MP, BN)
