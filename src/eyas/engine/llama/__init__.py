"""Blocks of the Llama family for one sequence: weights fused for decoding, torch operators, our own CPU kernels.

`LlamaTarget` is a target over them; `BlockStack` is what a target and a draft share.
"""
