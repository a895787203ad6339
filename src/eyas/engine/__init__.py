"""The reference engine: exact, readable speculative decoding with a KV cache."""
