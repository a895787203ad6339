"""The arithmetic of one step on packed rows: target, teacher, unrolled draft, loss, gradients."""
