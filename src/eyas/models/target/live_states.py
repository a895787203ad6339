"""The states of a target that runs through transformers: any architecture, rows padded on the right."""

from collections.abc import Sequence

import torch

from eyas.models.states import RowLayout, States, from_padded, to_padded
from eyas.models.target.target import Target, require_finite


class LiveStates:
    """The target runs over each row (`StateSource`).

    Args:
        target: in memory.
        most_tokens: positions that go through it at a time, padding counted; None for all.
    """

    pads = True

    def __init__(self, target: Target, most_tokens: int | None = None) -> None:
        self._target, self._most_tokens, self._is_first = target, most_tokens, True

    @property
    def vocab_size(self) -> int:
        """Rows of the target's embedding."""
        return self._target.vocab_size

    @property
    def device(self) -> torch.device:
        """The target's."""
        return self._target.device

    @torch.no_grad()
    def __call__(self, rows: RowLayout, boundaries: Sequence[int]) -> States:
        """See `StateSource`. Raises `TargetNotFinite` for NaN or infinities in the first pass."""
        ids = to_padded(rows, rows.ids)
        at_once = len(ids) if self._most_tokens is None else max(1, self._most_tokens // ids.shape[1])
        parts = [self._target.forward(part, boundaries) for part in torch.split(ids, at_once)]
        states = States(
            aux=from_padded(rows, torch.cat([part.aux for part in parts])),
            last=from_padded(rows, torch.cat([part.last for part in parts])),
        )
        if self._is_first:
            require_finite(states.last, self._target.name)
            self._is_first = False
        return states
