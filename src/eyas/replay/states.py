"""Where the target's states come from in a replay: the target itself, or a probe pack."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from eyas.models.target import Target, require_finite


class States(Protocol):
    """Gives the aux states over recorded rows."""

    @property
    def vocab_size(self) -> int:
        """V: ids are below it."""

    @property
    def device(self) -> torch.device:
        """Where the states are; the draft must be there too."""

    def aux(self, rows: Sequence[int], input_ids: Tensor, boundaries: Sequence[int]) -> Tensor:
        """Aux states [B, T, A * Ht] of the rows with these numbers.

        Args:
            rows: B numbers of rows.
            input_ids: [B, T] their tokens, padded on the right.
            boundaries: in `fc` order.
        """


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
        """See `States.aux`; one pass of the target. Raises `TargetNotFinite` for NaN or infinities in the first."""
        states = self._target.forward(input_ids, boundaries)
        if self._is_first:
            require_finite(states.last[0], self._target.name)
            self._is_first = False
        return states.aux
