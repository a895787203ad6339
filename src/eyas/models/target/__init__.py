"""The target as torch computes it: any causal model of `transformers`, its parts, and quantised weights.

- `target`: `Target`, which gives the states that a draft reads;
- `frozen_parts`: `FrozenParts`, embedding, norm and head without the rest of it;
- `loading`: from a folder to a model, and where its layers, embedding, norm and head are;
- `quantise`: int8 and int4 weights through torchao.
"""

from eyas.models.target.frozen_parts import FrozenParts as FrozenParts
from eyas.models.target.live_states import LiveStates as LiveStates
from eyas.models.target.target import AuxBoundaryMissing as AuxBoundaryMissing
from eyas.models.target.target import Target as Target
from eyas.models.target.target import TargetCacheUnsupported as TargetCacheUnsupported
from eyas.models.target.target import TargetNotFinite as TargetNotFinite
from eyas.models.target.target import require_finite as require_finite
from eyas.models.target.target import require_own_states as require_own_states
