"""A dynamic draft tree: which nodes are expanded, and which of all that were drafted are verified. Knows no model.

At each depth the `width` best nodes are expanded into up to `width` children each; of everything drafted the
`num_nodes` best are kept. Nodes stand in the order in which they were drafted: a parent always before its children.

Source: EAGLE-2, arXiv:2406.16858, sections 4.1 and 4.2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eyas.decode.tree_shape import TreeShape

if TYPE_CHECKING:
    from torch import Tensor

ROOT = -1  # the newest token of the text, of which all drafts are descendants


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A token drafted after some node.

    Two numbers, because a *sampled* token may be judged by its own probability when it comes to expanding it, but not
    when it comes to keeping it: what is thrown away because of its value biases the output (docs/trees.md).

    Attributes:
        id: in target ids.
        log_confidence: log of the draft's probability for it; at most `log_priority`.
        log_priority: what decides on keeping it, given its parent; at most 0. Equal to `log_confidence` for drafts
            that are not random; for sampled ones the log of the probability that its elder siblings left.
    """

    id: int
    log_confidence: float
    log_priority: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """The children drafted after one node.

    Attributes:
        children: best first, or in the order in which they were drawn.
        probs: [≤ V] the distribution that they were drawn from without replacement; None when they are not random.
    """

    children: tuple[Child, ...]
    probs: "Tensor | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTree:
    """The nodes that a verify pass reads; parents stand before their children.

    Attributes:
        ids: target ids of the nodes.
        parents: index of each node's parent, `ROOT` at depth 1.
        values: log of the draft's probability of each node's whole path.
        probs: the distribution that the children of a node (or `ROOT`) were sampled from.
    """

    ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    probs: "Mapping[int, Tensor]" = field(default_factory=dict)

    @property
    def depths(self) -> tuple[int, ...]:
        """Drafts on each node's path, itself included."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    @property
    def row_parents(self) -> tuple[int, ...]:
        """Parents as rows of the verify pass, whose row 0 is the root and row n + 1 is node n."""
        return (ROOT, *(parent + 1 for parent in self.parents))

    def children(self, node: int) -> list[int]:
        """Nodes whose parent it is, in order."""
        return [child for child, parent in enumerate(self.parents) if parent == node]


class TreePool:
    """All nodes drafted so far in one round.

    Ties go to the node that was drafted first: to the shallower one, and among siblings to the better.

    Args:
        shape: of the tree that is wanted.
    """

    def __init__(self, shape: TreeShape) -> None:
        self._shape = shape
        self.ids: list[int] = []
        self.parents: list[int] = []
        self.values: list[float] = []
        self._priorities: list[float] = []
        self._probs: dict[int, Tensor] = {}
        self._deepest: list[int] = []
        self.depth = 0

    def add_level(self, offers: Mapping[int, Offered]) -> None:
        """One depth more: node -> what was drafted after it (the first level's only node is `ROOT`)."""
        self.depth, self._deepest = self.depth + 1, []
        for node, offered in sorted(offers.items()):
            value = self.values[node] if node != ROOT else 0.0
            if offered.probs is not None:
                self._probs[node] = offered.probs
            for child in offered.children:
                assert child.log_confidence <= child.log_priority <= 0, f"{child}: a parent could be worse than it"
                self._deepest.append(len(self.ids))
                self.ids.append(child.id)
                self.parents.append(node)
                self.values.append(value + child.log_confidence)
                self._priorities.append(value + child.log_priority)

    def frontier(self) -> list[int]:
        """The nodes to expand next, in order: the `width` best of the deepest level whose children could still be kept.

        A node whose value is not above the N-th best priority cannot bring a child among the N best: leaving it out
        changes nothing, and an empty frontier ends the drafting early.
        """
        if self.depth >= self._shape.depth:
            return []
        best = sorted(self._deepest, key=lambda node: (-self.values[node], node))[: self._shape.width]
        floor = float("-inf")
        if len(self.ids) >= self._shape.num_nodes:
            floor = sorted(self._priorities, reverse=True)[self._shape.num_nodes - 1]
        return sorted(node for node in best if self.values[node] > floor)

    def best(self) -> DraftTree:
        """The tree of the N best nodes. A kept node's parent is kept: its priority is not lower, and it is older."""
        order = sorted(range(len(self.ids)), key=lambda node: (-self._priorities[node], node))
        kept = sorted(order[: self._shape.num_nodes])
        place = {ROOT: ROOT, **{node: i for i, node in enumerate(kept)}}
        return DraftTree(
            ids=tuple(self.ids[node] for node in kept),
            parents=tuple(place[self.parents[node]] for node in kept),
            values=tuple(self.values[node] for node in kept),
            probs={place[node]: probs for node, probs in self._probs.items() if node in place},
        )


def follow(tree: DraftTree, continuation: Sequence[int]) -> tuple[int, ...]:
    """The longest path of nodes whose tokens are a prefix of `continuation`: what greedy verification accepts."""
    path: list[int] = []
    for token in continuation:
        node = path[-1] if path else ROOT
        child = next((c for c in tree.children(node) if tree.ids[c] == token), None)
        if child is None:
            break
        path.append(child)
    return tuple(path)
