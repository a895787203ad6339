"""Keys and values of the draft's layers over the positions it has seen."""

import torch
from torch import Tensor


class DraftCache:
    """Grows with each `step`; `truncate` forgets what was drafted from the draft's own states.

    After verification an engine rebuilds the entries of accepted positions from *target* states, so everything a draft
    wrote beyond the first position of a round is cut off and written again.

    Attributes:
        keys, values: per layer [B, M, C, d], or None before the first step.
    """

    def __init__(self, num_layers: int) -> None:
        self.keys: list[Tensor | None] = [None] * num_layers
        self.values: list[Tensor | None] = [None] * num_layers

    @property
    def length(self) -> int:
        """Positions held, C."""
        return 0 if self.keys[0] is None else self.keys[0].shape[2]

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values of `layer`, the new ones [B, M, S, d] last."""
        old_key, old_value = self.keys[layer], self.values[layer]
        if old_key is not None and old_value is not None:
            key, value = torch.cat((old_key, key), 2), torch.cat((old_value, value), 2)
        self.keys[layer], self.values[layer] = key, value
        return key, value

    def truncate(self, length: int) -> None:
        """Keep the first `length` positions."""
        assert 0 <= length <= self.length, f"cannot keep {length} of {self.length} positions"
        self.keys = [None if k is None or length == 0 else k[:, :, :length] for k in self.keys]
        self.values = [None if v is None or length == 0 else v[:, :, :length] for v in self.values]
