"""How a draft layer asks for attention, without knowing which keys are visible to it."""

from collections.abc import Callable

from torch import Tensor

# (layer index, query [B, N, T, d], key [B, M, T, d], value [B, M, T, e]) -> [B, N, T, e]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
