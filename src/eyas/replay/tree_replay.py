"""Replay of trees: what rounds with a dynamic tree would have accepted over recorded texts, without generating.

What a tree accepts depends on the target's continuation alone, but which nodes it holds depends on the draft's values
for *all* branches: each round's tree is grown as the engine grows it, from the recorded context, and followed along the
recorded text. So rounds are walked one after the other, where a chain's are decided from all positions at once.
"""

from collections.abc import Sequence

import torch

from eyas.decode.tree import follow
from eyas.decode.tree_rules import GreedyTreeRule
from eyas.decode.tree_shape import TreeShape
from eyas.engine.open_engine import draft_runner
from eyas.engine.trees.tree_engine import require_trees_of
from eyas.engine.trees.tree_round import TreeDraft, grow
from eyas.models.draft import Eagle3Draft, required_boundaries
from eyas.models.states import StateSource, states_of_row
from eyas.records.eval_record import RowResult
from eyas.records.eval_rows import EvalRow
from eyas.replay.replay import check_vocabulary
from eyas.talk import Talk


def replay_trees(
    states: StateSource, draft: Eagle3Draft, rows: Sequence[EvalRow], shape: TreeShape, talk: Talk
) -> list[RowResult]:
    """The rounds that tree drafting would have taken over each recorded text.

    Args:
        states: gives the target's states that the draft reads, once for each text.
        draft: on the same device; it needs the embedding of any token, also of those that no text holds.
        rows: recorded continuations.
        shape: of every round's tree.

    Returns:
        One result a row, in the rows' order; counts are those of accepted drafts inside the recorded text.

    Raises:
        AuxBoundariesUnknown: `draft.spec.aux_boundaries` is None.
        RowOutsideVocabulary: a row holds ids that the target does not have.
        TreeUnsupported: the draft expands no trees.
    """
    boundaries = required_boundaries(draft)
    for row in rows:
        check_vocabulary(row, states.vocab_size)
    runner = require_trees_of(draft_runner(draft, None, 1, talk)[0])
    results = []
    with talk.progress("replay", sum(len(r.prompt_ids) + len(r.response_ids) for r in rows), "tokens") as bar:
        for i, row in enumerate(rows):
            text = [*row.prompt_ids, *row.response_ids]
            aux_states = states_of_row(states, i, text, boundaries).aux
            accepted = walk_tree_rounds(runner, text, aux_states, len(row.prompt_ids), shape)
            results.append(RowResult(id=row.id, set=row.set, accepted=accepted))
            bar.advance(len(text))
    return results


@torch.inference_mode()
def walk_tree_rounds(
    draft: TreeDraft, text: Sequence[int], aux_states: torch.Tensor, num_prompt: int, shape: TreeShape
) -> tuple[int, ...]:
    """Accepted drafts of each round over one text; where rounds start and what counts is as in `walk_rounds`.

    Args:
        draft: a runner.
        text: T ids, prompt and response.
        aux_states: [T, A * Ht] of the target.
        num_prompt: prompt tokens.
        shape: of every round's tree.
    """
    rule, rounds = GreedyTreeRule(), []
    draft.start(len(text) + shape.num_expanded)
    known, newest = 0, num_prompt  # positions that the draft has read; index of the newest token
    while newest < len(text) - 1:
        offer = draft.read(text[known + 1 : newest + 1], aux_states[known:newest])
        tree = grow(draft, rule, offer, shape)
        rounds.append(len(follow(tree, text[newest + 1 :])))
        known, newest = newest, newest + rounds[-1] + 1
    return tuple(rounds)
