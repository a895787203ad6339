"""A target's states over rows, computed by any source, proven, and put into a store.

- `source`: what a source is; `open_source`: which one `--from` means;
- `transformers_source`: the target in this process;
- `proof`: a source against transformers and against its own greedy tokens, before and while it is used;
- `extract`: the stage behind `eyas extract`.
"""
