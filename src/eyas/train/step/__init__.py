"""The arithmetic of one packed micro-batch: target, teacher, unrolled draft, loss, gradients.

Start at `ttt_loss.ttt_backward`; `unroll.make_unroll` and `packed_target.live_states` choose the fused path or the
reference path.
"""
