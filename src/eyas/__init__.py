"""EAGLE-3 speculative decoding, every hand-over proven. The public Python API is `eyas.api`."""

__version__ = "0.1.0"
