"""The target as torch computes it: any causal model of `transformers`, its parts, and quantised weights.

- `target`: `Target`, which gives the states that a draft reads;
- `loading`, `parts`: from a folder to a model, and where its layers, embedding, norm and head are;
- `quantise`: int8 and int4 weights through torchao.
"""

from eyas.models.target.target import (
    AuxBoundaryMissing,
    Target,
    TargetCacheUnsupported,
    TargetNotFinite,
    TargetStates,
    require_finite,
    require_own_states,
)

__all__ = [
    "AuxBoundaryMissing",
    "Target",
    "TargetCacheUnsupported",
    "TargetNotFinite",
    "TargetStates",
    "require_finite",
    "require_own_states",
]
