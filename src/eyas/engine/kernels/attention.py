# mypy: ignore-errors
"""Attention of 1 … 8 new rows over the live part of a static cache, split over positions.

The grid is fixed (a captured graph cannot change it); each program reads the live length from device memory and leaves
at once if its positions are beyond it. The last program of a key/value head to finish merges the parts.
"""

import triton
import triton.language as tl

from eyas.engine.kernels.rows import wait_for_inputs


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, position_ptr, offset, scale, out_ptr, part_ptr, peak_ptr, total_ptr, arrived_ptr,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, L: tl.constexpr, M: tl.constexpr,
    R: tl.constexpr, BL: tl.constexpr, SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [M, H, D] of q [M, H, D] over caches [G, L, D]; row m sees positions 0 … position + offset + m.

    R: rows of the query tile, >= M * H/G. Parts: [G, SPLITS, R, D], peaks and totals [G, SPLITS, R], arrived [G] zeros.
    """
    group = tl.program_id(0)
    split = tl.program_id(1)
    wait_for_inputs(PDL)
    first = tl.load(position_ptr) + offset
    num_live = tl.cdiv(first + M, BL)
    if split >= num_live:
        return
    HEADS: tl.constexpr = H // G
    r = tl.arange(0, R)
    d = tl.arange(0, D)
    m = r // HEADS
    row_ok = r < M * HEADS
    row_at = m * (H * D) + (group * HEADS + r % HEADS) * D
    q = tl.load(q_ptr + row_at[:, None] + d[None, :], mask=row_ok[:, None], other=0.0)
    at = split * BL + tl.arange(0, BL)
    is_live = at < first + M
    cell = (group * L + at[:, None]) * D + d[None, :]
    k = tl.load(k_ptr + cell, mask=is_live[:, None], other=0.0)
    v = tl.load(v_ptr + cell, mask=is_live[:, None], other=0.0)
    sees = (at[None, :] <= first + m[:, None]) & row_ok[:, None]
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
    scores = tl.where(sees, scores, float("-inf"))
    peak = tl.max(scores, axis=1)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    p = tl.exp2(scores - base[:, None])
    total = tl.sum(p, axis=1)
    acc = tl.dot(p.to(v.dtype), v, input_precision="ieee")
    is_last = True
    if num_live > 1:
        slot = group * SPLITS + split
        tl.store(part_ptr + (slot * R + r[:, None]) * D + d[None, :], acc)
        tl.store(peak_ptr + slot * R + r, peak)
        tl.store(total_ptr + slot * R + r, total)
        tl.debug_barrier()
        is_last = tl.atomic_add(arrived_ptr + group, 1, sem="acq_rel") == num_live - 1
        if is_last:
            tl.store(arrived_ptr + group, 0)
            peak = tl.full([R], float("-inf"), tl.float32)
            total = tl.zeros([R], tl.float32)
            acc = tl.zeros([R, D], tl.float32)
            s = 0
            while s < num_live:
                slot = group * SPLITS + s
                its_peak = tl.load(peak_ptr + slot * R + r, cache_modifier=".cg")
                its_total = tl.load(total_ptr + slot * R + r, cache_modifier=".cg")
                part = tl.load(part_ptr + (slot * R + r[:, None]) * D + d[None, :], cache_modifier=".cg")
                new_peak = tl.maximum(peak, its_peak)
                base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
                old_share = tl.exp2(peak - base)
                its_share = tl.exp2(its_peak - base)
                total = total * old_share + its_total * its_share
                acc = acc * old_share[:, None] + part * its_share[:, None]
                peak = new_peak
                s += 1
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    ok = row_ok[:, None] & is_last
    tl.store(out_ptr + row_at[:, None] + d[None, :], acc.to(out_ptr.dtype.element_ty), mask=ok)
