"""One stream of text by rounds of trees, from an `Engine`'s target and draft."""

from collections.abc import Sequence

from eyas.decode.tree_rules import GreedyTreeRule, TreeRule
from eyas.decode.tree_shape import TreeShape, TreeUnsupported
from eyas.engine.engine import Engine, Limits, require_prompt
from eyas.engine.generation import Generation, OnTokens
from eyas.engine.known_ids import require_known_ids
from eyas.engine.trees.tree_round import TreeDraft, TreeTarget, begin_tree, play_tree

_ONE_PASS = "it cannot read several nodes in one pass with a mask"


class TreeEngine:
    """Decodes one sequence at a time with draft trees.

    Args:
        engine: its target, draft and clock are used, one text at a time.

    Raises:
        TreeUnsupported: target or draft cannot read a tree, or the draft is missing.
    """

    def __init__(self, engine: Engine) -> None:
        self._target, self._draft = require_trees(engine.target, engine.draft)
        self._clock = engine.clock

    def generate(
        self,
        prompt_ids: Sequence[int],
        limits: Limits,
        shape: TreeShape,
        *,
        rule: TreeRule | None = None,
        on_tokens: OnTokens | None = None,
    ) -> Generation:
        """Continue a prompt.

        Args:
            prompt_ids: at least one id.
            limits: when to end.
            shape: of the tree of each round.
            rule: greedy unless given.
            on_tokens: called with each round's ids (none beyond the limits); it ends the text by returning True.

        Returns:
            `num_draft_tokens` is the tree's depth; origins 1 … depth say how deep an accepted draft was.

        Raises:
            PromptEmpty, PromptOutsideVocabulary: as `Engine.generate`.
        """
        prompt_ids = require_known_ids(prompt_ids, self._target.vocab_size, "prompt_ids")
        require_prompt(prompt_ids)
        rule = rule or GreedyTreeRule()
        # A round that starts one token before the limit still reads its whole tree.
        capacity = len(prompt_ids) + limits.max_new_tokens + 1
        self._target.start(capacity + shape.num_nodes, self._draft.aux_boundaries)
        self._draft.start(capacity + max(shape.num_expanded, shape.depth))

        text = Generation(num_draft_tokens=shape.depth)
        started = self._clock()
        position = begin_tree(self._target, self._draft, rule, list(prompt_ids))
        text.prefill_s = self._clock() - started
        has_ended = text.begin(position.pending_id, limits, on_tokens)
        while not has_ended:
            gained = play_tree(self._target, self._draft, rule, position, shape)
            num_drafted = gained.num_draft_tokens
            has_ended = text.add(gained.ids, gained.num_accepted_drafts, limits, on_tokens, num_drafted=num_drafted)
        text.decode_s = self._clock() - started - text.prefill_s
        return text


def require_trees(target: object, draft: object) -> tuple[TreeTarget, TreeDraft]:
    """Both, known to read trees; raises `TreeUnsupported` where one of them cannot."""
    if not isinstance(target, TreeTarget):
        raise TreeUnsupported.of(type(target).__name__, _ONE_PASS)
    return target, require_trees_of(draft)


def require_trees_of(draft: object) -> TreeDraft:
    """The draft, known to expand trees; raises `TreeUnsupported` where it cannot."""
    if not isinstance(draft, TreeDraft):
        raise TreeUnsupported.of(type(draft).__name__, _ONE_PASS)
    return draft
