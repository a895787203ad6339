"""What a tree round asks of a target and of a draft beyond what a chain asks (`engine/runner.py`).

Shapes: R rows (new nodes), V target vocabulary, D draft vocabulary, A aux states, Ht target hidden.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from eyas.engine.runner import Draft, Target, TargetOutput


@runtime_checkable
class TreeTarget(Target, Protocol):
    """A target that reads a tree in one pass."""

    def forward_tree(self, ids: Sequence[int], parents: Sequence[int]) -> TargetOutput:
        """Read R nodes in one pass; each sees the text and its own ancestors.

        Args:
            ids: R target ids.
            parents: index of each node's parent among the R, before it; -1 = the node follows the text.
        """

    def keep(self, rows: Sequence[int], num_rows: int) -> None:
        """Continue the text by a path of the last tree, and forget the rest of it.

        Args:
            rows: nodes from the tree's root down.
            num_rows: R of that `forward_tree`.
        """


@runtime_checkable
class TreeDraft(Draft, Protocol):
    """A draft that expands several nodes in one pass."""

    def expand(self, ids: Sequence[int], parents: Sequence[int]) -> Tensor:
        """Read R drafted tokens, each from the state of the node before it; `read` forgets them all.

        Args:
            ids: R target ids.
            parents: index of each token's parent among all tokens expanded since the last `read`, in their order;
                -1 = the token follows the text.

        Returns:
            [R, D] logits for the tokens after each.
        """
