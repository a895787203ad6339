"""Checkpoint files as headers: names, shapes, dtypes, offsets, integer maps. No weights, no torch, no pickle is run.

`read_checkpoint.read_checkpoint(path)` gives a `checkpoint.Checkpoint`; `header_dump` is the same as one JSON document.
"""
