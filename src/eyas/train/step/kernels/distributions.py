# mypy: ignore-errors
# Triton compiles these functions from their source: annotations mean Triton types, not Python ones.
"""Rows of logits: the target's reduced to what a draft can learn, the draft's to loss, argmax and gradient.

Shapes: C teacher rows, K steps, V target vocabulary, D draft vocabulary. A program handles one row.
"""

import triton
import triton.language as tl

LOW = tl.constexpr(-1e30)  # below any logit, but finite: LOW - LOW is 0


@triton.jit
def _gathered(peak, total):
    """Running maximum and sum of each lane to those of the row: (maximum, log-sum-exp)."""
    top = tl.max(peak, 0)
    return top, top + tl.log(tl.sum(total * tl.exp(peak - top), 0))


@triton.jit
def teacher_kernel(
    logits_ptr, offered_ptr, out_ptr, argmax_ptr, log_norm_ptr, log_mass_ptr,
    V: tl.constexpr, D: tl.constexpr, HAS_MAP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Columns of the draft vocabulary [C, D], argmax over all V, log-sum-exp over D, and log of the share of D in V."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    peak, total = tl.full([BLOCK], LOW, tl.float32), tl.zeros([BLOCK], tl.float32)
    best = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, V, BLOCK):
        k = begin + lane
        x = tl.load(logits_ptr + row * V + k, mask=k < V, other=float("-inf")).to(tl.float32)
        best = tl.where(x > peak, k, best)
        higher = tl.maximum(peak, x)
        total = total * tl.exp(peak - higher) + tl.exp(x - higher)
        peak = higher
    top, whole = _gathered(peak, total)
    tl.store(argmax_ptr + row, tl.min(tl.where(peak == top, best, V), 0))
    norm = whole
    if HAS_MAP:
        peak, total = tl.full([BLOCK], LOW, tl.float32), tl.zeros([BLOCK], tl.float32)
        for begin in range(0, D, BLOCK):
            k = begin + lane
            column = tl.load(offered_ptr + k, mask=k < D, other=0)
            x = tl.load(logits_ptr + row * V + column, mask=k < D, other=float("-inf"))
            tl.store(out_ptr + row * D + k, x, mask=k < D)
            x = x.to(tl.float32)
            higher = tl.maximum(peak, x)
            total = total * tl.exp(peak - higher) + tl.exp(x - higher)
            peak = higher
        top, norm = _gathered(peak, total)
    tl.store(log_norm_ptr + row, norm)
    tl.store(log_mass_ptr + row, norm - whole)


@triton.jit
def loss_kernel(
    logits_ptr, teacher_ptr, log_norm_ptr, log_mass_ptr, argmax_ptr, weight_ptr, loss_ptr, drafted_ptr, C, rate,
    D: tl.constexpr, LOSS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Loss and argmax of each row of logits [K * C, D], which then becomes its own gradient times the row's weight.

    LOSS: 0 kl, 1 ce, 2 tv, 3 lk, 4 jeffreys (see `train.loss`). Row r learns from teacher row r % C; a weight of 0
    means no loss.
    """
    row = tl.program_id(0).to(tl.int64)
    n = row % C
    lane = tl.arange(0, BLOCK)
    peak, total = tl.full([BLOCK], LOW, tl.float32), tl.zeros([BLOCK], tl.float32)
    best = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, D, BLOCK):
        k = begin + lane
        x = tl.load(logits_ptr + row * D + k, mask=k < D, other=float("-inf")).to(tl.float32)
        best = tl.where(x > peak, k, best)
        higher = tl.maximum(peak, x)
        total = total * tl.exp(peak - higher) + tl.exp(x - higher)
        peak = higher
    top, norm = _gathered(peak, total)
    tl.store(drafted_ptr + row, tl.min(tl.where(peak == top, best, D), 0))
    weight = tl.load(weight_ptr + row)
    log_norm, log_mass = tl.load(log_norm_ptr + n), tl.load(log_mass_ptr + n)
    argmax = tl.load(argmax_ptr + n)
    divergence, accepted, below, reverse = 0.0, 0.0, 0.0, 0.0
    if LOSS >= 2:
        d_sum = tl.zeros([BLOCK], tl.float32)
        a_sum = tl.zeros([BLOCK], tl.float32)
        b_sum = tl.zeros([BLOCK], tl.float32)
        r_sum = tl.zeros([BLOCK], tl.float32)
        for begin in range(0, D, BLOCK):
            k = begin + lane
            x = tl.load(logits_ptr + row * D + k, mask=k < D, other=float("-inf")).to(tl.float32) - norm
            y = tl.load(teacher_ptr + n * D + k, mask=k < D, other=float("-inf")).to(tl.float32) - log_norm
            q, p = tl.exp(x), tl.exp(y)
            mine = tl.exp(y + log_mass)
            d_sum += tl.where(p > 0, p * (y - x), 0.0)
            a_sum += tl.minimum(mine, q)
            b_sum += tl.where(q < mine, q, 0.0)
            r_sum += tl.where(q > 0, q * (x - y), 0.0)
        divergence, accepted, below = tl.sum(d_sum, 0), tl.sum(a_sum, 0), tl.sum(b_sum, 0)
        reverse = tl.sum(r_sum, 0)
    trust = tl.exp(-rate * accepted)
    sums = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, D, BLOCK):
        k = begin + lane
        x = tl.load(logits_ptr + row * D + k, mask=k < D, other=float("-inf")).to(tl.float32) - norm
        q = tl.exp(x)
        if LOSS == 1:
            grad = q - tl.where(k == argmax, 1.0, 0.0)
            sums += tl.where(k == argmax, -x, 0.0)
        else:
            y = tl.load(teacher_ptr + n * D + k, mask=k < D, other=float("-inf")).to(tl.float32) - log_norm
            p = tl.exp(y)
            if LOSS == 0:
                grad = q - p
                sums += tl.where(p > 0, p * (y - x), 0.0)
            else:
                grad = q * below - tl.where(q < tl.exp(y + log_mass), q, 0.0)
                if LOSS == 3:
                    grad = trust * (q - p) + (1.0 - trust) * grad
                if LOSS == 4:
                    grad = 0.5 * (q - p + tl.where(q > 0, q * (x - y - reverse), 0.0))
        tl.store(logits_ptr + row * D + k, (grad * weight).to(logits_ptr.dtype.element_ty), mask=k < D)
    loss = tl.sum(sums, 0)
    if LOSS == 2:
        loss = 1.0 - accepted
    if LOSS == 3:
        loss = trust * divergence + (1.0 - trust) * (1.0 - accepted)
    if LOSS == 4:
        loss = 0.5 * (divergence + reverse)
    tl.store(loss_ptr + row, tl.where(weight != 0.0, loss, 0.0))
