"""One round of speculative decoding with a tree, in reading order: draft, verify, accept, repair.

The same as `engine/round.py` with more than one guess per position. Before a round, and after it, the target has read
everything but the newest token; the draft has read everything that the target has, and offers its logits for the token
after the newest.

Shapes: R rows (new nodes), V target vocabulary, D draft vocabulary, A aux states, Ht target hidden.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from eyas.decode.tree import ROOT, DraftTree, TreePool
from eyas.decode.tree_rules import TreeRule
from eyas.decode.tree_shape import TreeShape
from eyas.engine.round import Position, RoundResult
from eyas.engine.sequence_protocols import DraftSequence, TargetOutput, TargetSequence


@runtime_checkable
class TreeTarget(TargetSequence, Protocol):
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
class TreeDraft(DraftSequence, Protocol):
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


def begin_tree(target: TreeTarget, draft: TreeDraft, rule: TreeRule, prompt_ids: list[int]) -> Position:
    """Read the prompt; its first new token belongs to no round."""
    output = target.prefill(prompt_ids)
    first_id = rule.verify(output.logits, DraftTree()).bonus_token
    return Position(first_id, draft.read([*prompt_ids[1:], first_id], output.aux_states))


def grow(draft: TreeDraft, rule: TreeRule, offer: Tensor, shape: TreeShape) -> DraftTree:
    """Draft a tree.

    Args:
        offer: [D] the draft's logits for the token after the newest.
        shape: width, depth and number of nodes.
    """
    pool = TreePool(shape)
    pool.add_level({ROOT: rule.offer(offer[None], draft.vocab_index, shape.width)[0]})
    place = {ROOT: -1}  # node -> its number among those that the draft has read
    while frontier := pool.frontier():
        # One pass of the draft reads the best nodes of this depth, each from the state of its parent.
        parents = [place[pool.parents[node]] for node in frontier]
        place |= {node: len(place) - 1 + i for i, node in enumerate(frontier)}
        logits = draft.expand([pool.ids[node] for node in frontier], parents)
        offers = rule.offer(logits, draft.vocab_index, shape.width)
        pool.add_level(dict(zip(frontier, offers, strict=True)))
    return pool.best()


def play_tree(
    target: TreeTarget, draft: TreeDraft, rule: TreeRule, position: Position, shape: TreeShape
) -> RoundResult:
    """Play one round and move `position` on; it drafted as many tokens as its tree is deep."""
    # Draft: a tree of the most likely continuations.
    assert position.draft_logits is not None, "drafting needs the draft's first offer"
    tree = grow(draft, rule, position.draft_logits, shape)

    # Verify: one pass over the pending token (row 0) and all nodes (node n is row n + 1).
    output = target.forward_tree([position.pending_id, *tree.ids], tree.row_parents)

    # Accept: a path down to the first place where the target would go elsewhere, then the target's own token.
    verdict = rule.verify(output.logits, tree)
    ids = (*(tree.ids[node] for node in verdict.path), verdict.bonus_token)
    rows = [0, *(node + 1 for node in verdict.path)]
    target.keep(rows, len(tree.ids) + 1)

    # Repair: what the draft cached from its own states is written again from the target's, along the accepted path.
    position.pending_id = verdict.bonus_token
    position.draft_logits = draft.read(ids, output.aux_states[rows])
    return RoundResult(ids, len(verdict.path), max(tree.depths))
