"""A target's states as everything after the target reads them, wherever they come from.

Boundary n is the state after n decoder layers: 0 the embedding, N the state *before* the final norm.
Shapes: A aux boundaries, Ht target hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """The states of one pass over some positions.

    Attributes:
        aux: [..., A * Ht], boundaries in the order asked for.
        last: [..., Ht] after the final norm, what the head reads.
    """

    aux: Tensor
    last: Tensor


class StateSource(Protocol):
    """Gives the states over recorded rows: the target itself, or what kept them."""

    @property
    def vocab_size(self) -> int:
        """V: ids are below it."""

    @property
    def device(self) -> torch.device:
        """Where the states are; the draft must be there too."""

    def aux(self, rows: Sequence[int], input_ids: Tensor, boundaries: Sequence[int]) -> Tensor:
        """Aux states [B, T, A * Ht] of the rows with these numbers; the padding's have no meaning.

        Args:
            rows: B numbers of rows.
            input_ids: [B, T] their tokens, padded on the right.
            boundaries: in `fc` order.
        """
