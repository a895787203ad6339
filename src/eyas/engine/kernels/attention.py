# mypy: ignore-errors
"""Attention of 1 … 8 new rows over the live part of a static cache, split over positions.

The grid is fixed (a captured graph cannot change it); each program reads the live length from device memory and leaves
at once if its positions are beyond it. The last program of a key/value head to finish merges the parts.
"""

import triton
import triton.language as tl

from eyas.engine.kernels.rows import let_next_start, wait_for_inputs


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, position_ptr, offset, scale, out_ptr, part_ptr, peak_ptr, total_ptr, arrived_ptr,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, L: tl.constexpr, M: tl.constexpr,
    R: tl.constexpr, BL: tl.constexpr, SPLITS: tl.constexpr, AT_ONCE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [M, H, D] of q [M, H, D] over caches [G, L, D]; row m sees positions 0 … position + offset + m.

    R: rows of the query tile, >= M * H/G. Parts: [G, SPLITS, R, D], peaks and totals [G, SPLITS, R], arrived [G] zeros.
    AT_ONCE: parts merged in one step.
    """
    group = tl.program_id(0)
    split = tl.program_id(1)
    first = tl.load(position_ptr) + offset
    num_live = tl.maximum(tl.cdiv(first, BL), 1)
    if split >= num_live:
        wait_for_inputs(PDL)
        return
    HEADS: tl.constexpr = H // G
    r = tl.arange(0, R)
    d = tl.arange(0, D)
    m = r // HEADS
    row_ok = r < M * HEADS
    row_at = m * (H * D) + (group * HEADS + r % HEADS) * D
    # Old positions do not depend on the kernel just before; the new rows do, and are the first split's.
    old = split * BL + tl.arange(0, BL)
    old_ok = old < first
    old_at = (group * L + old[:, None]) * D + d[None, :]
    k = tl.load(k_ptr + old_at, mask=old_ok[:, None], other=0.0)
    v = tl.load(v_ptr + old_at, mask=old_ok[:, None], other=0.0)
    wait_for_inputs(PDL)
    let_next_start(PDL)
    q = tl.load(q_ptr + row_at[:, None] + d[None, :], mask=row_ok[:, None], other=0.0)
    new = tl.arange(0, 16)
    new_ok = (new < M) & (split == 0)
    new_at = (group * L + first + new[:, None]) * D + d[None, :]
    new_k = tl.load(k_ptr + new_at, mask=new_ok[:, None], other=0.0)
    new_v = tl.load(v_ptr + new_at, mask=new_ok[:, None], other=0.0)
    to_log2 = scale * 1.4426950408889634
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * to_log2
    scores = tl.where(old_ok[None, :] & row_ok[:, None], scores, float("-inf"))
    new_scores = tl.dot(q, tl.trans(new_k), input_precision="ieee") * to_log2
    new_sees = new_ok[None, :] & (new[None, :] <= m[:, None]) & row_ok[:, None]
    new_scores = tl.where(new_sees, new_scores, float("-inf"))
    peak = tl.maximum(tl.max(scores, axis=1), tl.max(new_scores, axis=1))
    base = tl.where(peak == float("-inf"), 0.0, peak)
    p = tl.exp2(scores - base[:, None])
    new_p = tl.exp2(new_scores - base[:, None])
    total = tl.sum(p, axis=1) + tl.sum(new_p, axis=1)
    acc = tl.dot(p.to(v.dtype), v, input_precision="ieee")
    acc = tl.dot(new_p.to(v.dtype), new_v, acc, input_precision="ieee")
    is_last = True
    if num_live > 1:
        slot = group * SPLITS + split
        tl.store(part_ptr + (slot * R + r[:, None]) * D + d[None, :], acc, mask=row_ok[:, None])
        tl.store(peak_ptr + slot * R + r, peak)
        tl.store(total_ptr + slot * R + r, total)
        tl.debug_barrier()
        is_last = tl.atomic_add(arrived_ptr + group, 1, sem="acq_rel") == num_live - 1
        if is_last:
            tl.store(arrived_ptr + group, 0)
            peak = tl.full([R], float("-inf"), tl.float32)
            total = tl.zeros([R], tl.float32)
            acc = tl.zeros([R, D], tl.float32)
            start = 0
            while start < num_live:
                s = start + tl.arange(0, AT_ONCE)
                slots = ((group * SPLITS + s) * R)[:, None] + r[None, :]
                is_there = (s < num_live)[:, None] & row_ok[None, :]
                peaks = tl.load(peak_ptr + slots, mask=is_there, other=float("-inf"), cache_modifier=".cg")
                totals = tl.load(total_ptr + slots, mask=is_there, other=0.0, cache_modifier=".cg")
                cells = slots[:, :, None] * D + d[None, None, :]
                parts = tl.load(part_ptr + cells, mask=is_there[:, :, None], other=0.0, cache_modifier=".cg")
                new_peak = tl.maximum(peak, tl.max(peaks, axis=0))
                base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
                shares = tl.exp2(peaks - base[None, :])
                old_share = tl.exp2(peak - base)
                total = total * old_share + tl.sum(totals * shares, axis=0)
                acc = acc * old_share[:, None] + tl.sum(parts * shares[:, :, None], axis=0)
                peak = new_peak
                start += AT_ONCE
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    ok = row_ok[:, None] & is_last
    tl.store(out_ptr + row_at[:, None] + d[None, :], acc.to(out_ptr.dtype.element_ty), mask=ok)
