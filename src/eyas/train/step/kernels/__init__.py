"""Triton kernels of training. Importing a module here needs Triton; `train.row_ops` imports them only on a GPU."""
