# mypy: ignore-errors
"""Kernels of a batched pass: residual + norm, rotary + cache write, attention over live lengths, SwiGLU.

Matrix products between them are the library's. What is rounded in bf16 is rounded where PyTorch's operators round it,
so that only the order of sums differs from the reference.
Shapes: R = B * M rows (M of each of B sequences), E hidden, N query heads, G key/value heads, D head width, S slots,
C capacity of a slot in positions, I intermediate.
"""

import triton
import triton.language as tl


@triton.jit
def add_norm_kernel(
    residual_ptr, x_ptr, g_ptr, eps, out_ptr, E: tl.constexpr, BE: tl.constexpr, ADD: tl.constexpr
):  # fmt: skip
    """residual [R, E] += x in place (with ADD); out = its root mean square norm."""
    row = tl.program_id(0).to(tl.int64) * E
    e = tl.arange(0, BE)
    ok = e < E
    value = tl.load(residual_ptr + row + e, mask=ok, other=0.0)
    if ADD:
        x = tl.load(x_ptr + row + e, mask=ok, other=0.0)
        value = (value.to(tl.float32) + x.to(tl.float32)).to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + row + e, value, mask=ok)
    wide = value.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / E + eps)
    g = tl.load(g_ptr + e, mask=ok, other=0.0).to(tl.float32)
    tl.store(out_ptr + row + e, (wide * scale * g).to(out_ptr.dtype.element_ty), mask=ok)


@triton.jit
def turn_kernel(
    qkv_ptr, lengths_ptr, slots_ptr, q_g_ptr, k_g_ptr, eps, cos_ptr, sin_ptr, q_ptr, k_ptr, v_ptr, C,
    N: tl.constexpr, G: tl.constexpr, D: tl.constexpr, M: tl.constexpr,
    BN: tl.constexpr, BG: tl.constexpr, BD: tl.constexpr, NORM: tl.constexpr, INDIRECT: tl.constexpr,
):  # fmt: skip
    """q [R, N, D] turned; keys (turned) and values into caches [S, G, C, D] at lengths + m. One program per row.

    BN, BG, BD: N + G, G and D / 2 as powers of two. INDIRECT: sequence b is in slot slots[b], else in slot b.
    """
    DTYPE: tl.constexpr = q_ptr.dtype.element_ty
    HALF: tl.constexpr = D // 2
    row = tl.program_id(0)
    slot = (row // M).to(tl.int64)
    at = tl.minimum(tl.load(lengths_ptr + slot) + row % M, C - 1)
    if INDIRECT:
        slot = tl.load(slots_ptr + slot)
    first = qkv_ptr + row.to(tl.int64) * ((N + 2 * G) * D)
    head = tl.arange(0, BN)[:, None]
    j = tl.arange(0, BD)[None, :]
    ok = (head < N + G) & (j < HALF)
    low = tl.load(first + head * D + j, mask=ok, other=0.0).to(tl.float32)
    high = tl.load(first + head * D + HALF + j, mask=ok, other=0.0).to(tl.float32)
    if NORM:
        mean = (tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)) / D
        scale = (1.0 / tl.sqrt(mean + eps))[:, None]
        is_query = ok & (head < N)
        is_other = ok & (head >= N)
        low_g = tl.load(q_g_ptr + j, mask=is_query, other=0.0) + tl.load(k_g_ptr + j, mask=is_other, other=0.0)
        high_g = tl.load(q_g_ptr + HALF + j, mask=is_query, other=0.0)
        high_g += tl.load(k_g_ptr + HALF + j, mask=is_other, other=0.0)
        low = (low * scale * low_g.to(tl.float32)).to(DTYPE).to(tl.float32)
        high = (high * scale * high_g.to(tl.float32)).to(DTYPE).to(tl.float32)
    cos = tl.load(cos_ptr + at * HALF + j, mask=j < HALF, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + at * HALF + j, mask=j < HALF, other=0.0).to(tl.float32)
    a = (low * cos).to(DTYPE).to(tl.float32) - (high * sin).to(DTYPE).to(tl.float32)
    b = (high * cos).to(DTYPE).to(tl.float32) + (low * sin).to(DTYPE).to(tl.float32)
    q_at = q_ptr + (row.to(tl.int64) * N + head) * D + j
    tl.store(q_at, a.to(DTYPE), mask=ok & (head < N))
    tl.store(q_at + HALF, b.to(DTYPE), mask=ok & (head < N))
    k_at = k_ptr + ((slot * G + head - N) * C + at) * D + j
    tl.store(k_at, a.to(DTYPE), mask=ok & (head >= N))
    tl.store(k_at + HALF, b.to(DTYPE), mask=ok & (head >= N))
    group = tl.arange(0, BG)[:, None]
    value_ok = (group < G) & (j < HALF)
    source = first + (N + G + group) * D + j
    v_at = v_ptr + ((slot * G + group) * C + at) * D + j
    tl.store(v_at, tl.load(source, mask=value_ok, other=0.0), mask=value_ok)
    tl.store(v_at + HALF, tl.load(source + HALF, mask=value_ok, other=0.0), mask=value_ok)


@triton.jit
def attend_kernel(
    q_ptr, k_ptr, v_ptr, lengths_ptr, slots_ptr, scale, out_ptr, part_ptr, peak_ptr, total_ptr, arrived_ptr, C,
    N: tl.constexpr, G: tl.constexpr, D: tl.constexpr, M: tl.constexpr,
    BR: tl.constexpr, BD: tl.constexpr, BL: tl.constexpr, SPLITS: tl.constexpr, INDIRECT: tl.constexpr,
):  # fmt: skip
    """out [R, N, D] of q [R, N, D] over caches [S, G, C, D]; row m sees positions 0 … its length + m.

    One program per sequence and key/value head: its M * N / G query rows share what it reads. BR: those rows, BD: D, as
    powers of two of at least 16; BL: positions at once. SPLITS > 1 programs share the positions where there are few
    sequences; the last to finish merges their parts [B, G, SPLITS, BR, BD], peaks and totals [B, G, SPLITS, BR];
    arrived: [B, G] zeros.
    """
    HEADS: tl.constexpr = N // G
    b = tl.program_id(0)
    group = tl.program_id(1)
    length = tl.load(lengths_ptr + b)
    end = tl.minimum(length + M, C)
    r = tl.arange(0, BR)
    d = tl.arange(0, BD)
    d_ok = d < D
    m = r // HEADS
    row_ok = r < M * HEADS
    head = group * HEADS + r % HEADS
    at_row = ((b.to(tl.int64) * M + m) * N + head) * D
    ok = row_ok[:, None] & d_ok[None, :]
    q = tl.load(q_ptr + at_row[:, None] + d[None, :], mask=ok, other=0.0)
    sees = length + m
    to_log2 = scale * 1.4426950408889634
    slot = b.to(tl.int64)
    if INDIRECT:
        slot = tl.load(slots_ptr + b)
    first = (slot * G + group) * C * D
    peak = tl.full([BR], float("-inf"), tl.float32)
    total = tl.zeros([BR], tl.float32)
    acc = tl.zeros([BR, BD], tl.float32)
    from_position = tl.zeros([], end.dtype)
    to_position = end
    if SPLITS > 1:
        span = tl.cdiv(tl.cdiv(end, SPLITS), BL) * BL
        from_position = tl.program_id(2) * span
        to_position = tl.minimum(from_position + span, end)
    for start in range(from_position, to_position, BL):
        at = start + tl.arange(0, BL)
        cell = first + at[:, None] * D + d[None, :]
        cell_ok = (at < end)[:, None] & d_ok[None, :]
        k = tl.load(k_ptr + cell, mask=cell_ok, other=0.0)
        v = tl.load(v_ptr + cell, mask=cell_ok, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * to_log2
        scores = tl.where(at[None, :] <= sees[:, None], scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # a row may see nothing of a late part
        shrink = tl.exp2(peak - base)
        p = tl.exp2(scores - base[:, None])
        total = total * shrink + tl.sum(p, axis=1)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        peak = new_peak
    if SPLITS > 1:
        first_part = (b * G + group) * SPLITS
        part = first_part + tl.program_id(2)
        cells = r[:, None] * BD + d[None, :]
        tl.store(part_ptr + part * (BR * BD) + cells, acc)
        tl.store(peak_ptr + part * BR + r, peak)
        tl.store(total_ptr + part * BR + r, total)
        tl.debug_barrier()
        is_last = tl.atomic_add(arrived_ptr + b * G + group, 1, sem="acq_rel") == SPLITS - 1
        ok = ok & is_last
        if is_last:
            tl.store(arrived_ptr + b * G + group, 0)
            peak = tl.full([BR], float("-inf"), tl.float32)
            total = tl.zeros([BR], tl.float32)
            acc = tl.zeros([BR, BD], tl.float32)
            for index in tl.static_range(SPLITS):
                other = first_part + index
                other_peak = tl.load(peak_ptr + other * BR + r, cache_modifier=".cg")
                other_total = tl.load(total_ptr + other * BR + r, cache_modifier=".cg")
                other_acc = tl.load(part_ptr + other * (BR * BD) + cells, cache_modifier=".cg")
                # The first part sees position 0: from it on the peak is a number.
                new_peak = tl.maximum(peak, other_peak)
                shrink = tl.exp2(peak - new_peak)
                grow = tl.exp2(other_peak - new_peak)
                total = total * shrink + other_total * grow
                acc = acc * shrink[:, None] + other_acc * grow[:, None]
                peak = new_peak
    acc = acc / total[:, None]
    tl.store(out_ptr + at_row[:, None] + d[None, :], acc.to(out_ptr.dtype.element_ty), mask=ok)


@triton.jit
def swiglu_kernel(gate_up_ptr, out_ptr, W, BI: tl.constexpr):
    """out [R, W] = silu(gate) * up of [R, 2W]."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BI + tl.arange(0, BI)
    ok = i < W
    gate = tl.load(gate_up_ptr + row * 2 * W + i, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * W + W + i, mask=ok, other=0.0).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(out_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + row * W + i, (silu * up).to(out_ptr.dtype.element_ty), mask=ok)
