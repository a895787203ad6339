"""One row of a store: tokens, and the target's states over them.

Shapes: n tokens, P = n - first positions kept, A boundaries, Ht hidden size.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eyas.store.about import StoreAbout

KEY_BYTES = DIGEST_BYTES = 16
IS_UNKNOWN = 2  # of `is_supervised` on disk


def row_key(token_ids: "Sequence[int] | NDArray[np.int32]") -> str:
    """The name of a row: 32 hex digits, a hash of its token ids. The same ids have the same states."""
    return hashlib.sha256(np.asarray(token_ids, "<i4").tobytes()).hexdigest()[: 2 * KEY_BYTES]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoreRow:
    """A row; what a reader gives are views of the file.

    Attributes:
        token_ids: int32 [n].
        states: [P, (A + 1) * Ht], boundaries ascending, then the last state; bf16 as uint16, fp8 as uint8.
        first: states begin at this position of the row: 0, or later where only a suffix was kept.
        is_supervised: bool [n], true where the target wrote the token; None where the source did not know.
        scales: float32 [P, A + 1] of fp8 states, which are to be multiplied with them; else None.
    """

    token_ids: "NDArray[np.int32]"
    states: "NDArray[Any]"
    first: int = 0
    is_supervised: "NDArray[np.bool_] | None" = None
    scales: "NDArray[np.float32] | None" = None

    @property
    def key(self) -> str:
        """See `row_key`."""
        return row_key(self.token_ids)

    def digest(self) -> bytes:
        """Hash of states and scales."""
        hashed = hashlib.sha256(np.ascontiguousarray(self.states).data)
        if self.scales is not None:
            hashed.update(np.ascontiguousarray(self.scales).data)
        return hashed.digest()[:DIGEST_BYTES]

    def require_fits(self, about: StoreAbout) -> None:
        """Assert that the arrays are as `about` says: what gives others has a fault of its own."""
        positions = len(self.token_ids) - self.first
        found = (self.token_ids.dtype.name, self.states.dtype, self.states.shape)
        assert 0 <= self.first < self.token_ids.size == len(self.token_ids), f"{self.first}, {found}"
        assert found == ("int32", about.numpy_dtype, (positions, about.width)), f"{found}, wanted {about}"
        assert self.is_supervised is None or self.is_supervised.shape == self.token_ids.shape, "a flag per token"
        shape = None if self.scales is None else self.scales.shape
        assert shape == ((positions, about.num_states) if about.has_scales else None), f"scales are {shape}"
