"""Triton kernels of the captured round. Importing a module here needs Triton; nothing else in eyas does."""
