"""The arithmetic of one packed micro-batch: target, teacher, unrolled draft, loss, gradients.

Start at `ttt_loss.ttt_backward`; `unroll.make_unroll` and `packed_target.packed_target` choose the fused path or the
reference path.
"""
