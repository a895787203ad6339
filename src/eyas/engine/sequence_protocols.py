"""What a round asks of a target and of a draft. Stubs with fixed logits satisfy these as well as real models.

Shapes: R rows (new positions), V target vocabulary, D draft vocabulary, A aux states, Ht target hidden.
Tensors that a runner returns may be views of static buffers: they hold until its next call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOutput:
    """What one forward pass of the target yields.

    Attributes:
        logits: [R, V], or [1, V] of the last position after a prefill.
        aux_states: [R, A * Ht] in the order of the tapped boundaries; [R, 0] when nothing is tapped.
    """

    logits: Tensor
    aux_states: Tensor


class TargetSequence(Protocol):
    """A target with one sequence in its cache."""

    @property
    def vocab_size(self) -> int:
        """V."""

    @property
    def length(self) -> int:
        """Positions in the cache."""

    def start(self, capacity: int, aux_boundaries: Sequence[int]) -> None:
        """Forget the sequence; make room for `capacity` positions; tap these states (number of layers applied)."""

    def prefill(self, ids: Sequence[int]) -> TargetOutput:
        """Read a prompt from an empty cache; logits of its last position, aux states of all.

        Raises:
            TargetNotFinite: the logits are not finite.
        """

    def forward(self, ids: Sequence[int]) -> TargetOutput:
        """Read R ids more in one pass."""

    def truncate(self, length: int) -> None:
        """Forget all positions from `length` on."""


class DraftSequence(Protocol):
    """A draft with one sequence in its cache."""

    @property
    def aux_boundaries(self) -> Sequence[int]:
        """The target's states that it reads, as the number of decoder layers applied."""

    @property
    def vocab_index(self) -> Tensor | None:
        """[D] target id of each draft id; None when the vocabularies are the same."""

    def start(self, capacity: int) -> None:
        """Forget the sequence; make room for `capacity` positions."""

    def read(self, next_ids: Sequence[int], aux_states: Tensor) -> Tensor:
        """Replace what was drafted since the last `read` with the target's states and tokens.

        Args:
            next_ids: R target ids, entry t the token *after* position t.
            aux_states: [R, A * Ht] of the target at these positions.

        Returns:
            [D] logits for the token after the last of `next_ids`: the first draft.
        """

    def step(self, draft_id: int) -> Tensor:
        """Read one drafted token (a target id) from the draft's own last state; [D] logits of the next draft."""
