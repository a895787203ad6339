"""A whole round as one CUDA graph: greedy, one sequence, Llama-like targets."""
