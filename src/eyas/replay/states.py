"""Where the target's states come from in a replay: the target itself, or a probe pack."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eyas.models.states import StateSource
from eyas.models.target import Target, require_finite

_KEPT_BYTES = 4 << 30


class LiveStates:
    """The target runs over each row."""

    def __init__(self, target: Target) -> None:
        self._target, self._is_first = target, True

    @property
    def vocab_size(self) -> int:
        """Rows of the target's embedding."""
        return self._target.vocab_size

    @property
    def device(self) -> torch.device:
        """The target's."""
        return self._target.device

    def aux(self, rows: Sequence[int], input_ids: Tensor, boundaries: Sequence[int]) -> Tensor:
        """See `StateSource.aux`. Raises `TargetNotFinite` for NaN or infinities in the first pass."""
        states = self._target.forward(input_ids, boundaries)
        if self._is_first:
            require_finite(states.last[0], self._target.name)
            self._is_first = False
        return states.aux


class KeptStates:
    """States that are computed once per batch of rows and kept, as long as all of them take at most `most_bytes`.

    Args:
        states: computes them.
        most_bytes: on their device; states beyond it are computed each time.
    """

    def __init__(self, states: StateSource, most_bytes: int = _KEPT_BYTES) -> None:
        self._states, self._free = states, most_bytes
        self._kept: dict[tuple[tuple[int, ...], ...], Tensor] = {}

    @property
    def vocab_size(self) -> int:
        """See `StateSource.vocab_size`."""
        return self._states.vocab_size

    @property
    def device(self) -> torch.device:
        """See `StateSource.device`."""
        return self._states.device

    def aux(self, rows: Sequence[int], input_ids: Tensor, boundaries: Sequence[int]) -> Tensor:
        """See `StateSource.aux`; the same rows always come with the same tokens."""
        key = (tuple(rows), tuple(boundaries))
        found = self._kept.get(key)
        if found is None:
            found = self._states.aux(rows, input_ids, boundaries)
            size = found.numel() * found.element_size()
            if size <= self._free:
                self._free -= size
                self._kept[key] = found
        return found
