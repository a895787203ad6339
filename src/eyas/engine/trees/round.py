"""One round of speculative decoding with a tree, in reading order: draft, verify, accept, repair.

The same as `engine/round.py` with more than one guess per position. Before a round, and after it, the target has read
everything but the newest token; the draft has read everything that the target has, and offers its logits for the token
after the newest.
"""

from torch import Tensor

from eyas.decode.tree import ROOT, DraftTree, TreePool
from eyas.decode.tree_rules import TreeRule
from eyas.decode.tree_shape import TreeShape
from eyas.engine.round import Position, Round
from eyas.engine.trees.runner import TreeDraft, TreeTarget


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


def play_tree(target: TreeTarget, draft: TreeDraft, rule: TreeRule, position: Position, shape: TreeShape) -> Round:
    """Play one round and move `position` on; it drafted as many tokens as its tree is deep."""
    # Draft: a tree of the likeliest continuations.
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
    return Round(ids, len(verdict.path), max(tree.depths))
