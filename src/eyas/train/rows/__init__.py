"""What a run trains on: which rows are in which step, a packed micro-batch of them, and the held-out rows.

Start at `batch_plan.plan_batches` and `packing.pack`.
"""
