"""The rules of tree drafting: which children a node gets, and what a verify pass over a tree accepts.

Shapes: R rows of logits, N nodes, V target vocabulary, D draft vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from eyas.decode.sampling import Sampling, SamplingBatch, beyond, draw, token_probs
from eyas.decode.tree import ROOT, Child, DraftTree, Offered


@dataclass(frozen=True, slots=True)
class TreeVerdict:
    """What a verify pass over a tree decided.

    Attributes:
        path: accepted nodes, from depth 1 down.
        bonus_token: the target's own token after the last of them.
    """

    path: tuple[int, ...]
    bonus_token: int


class TreeRule(Protocol):
    """Chooses children and verifies a tree. With an empty tree, `verify` chooses the next token of plain decoding."""

    def offer(self, logits: Tensor, vocab_index: Tensor | None, width: int) -> list[Offered]:
        """At most `width` children for each row of [R, D] logits; `vocab_index` [D] maps to target ids."""

    def verify(self, logits: Tensor, tree: DraftTree) -> TreeVerdict:
        """Judge a tree by the target's logits [N + 1, V]; row 0 stands after the root, row n + 1 after node n."""


class GreedyTreeRule:
    """The target's argmax decides; the output is that of plain greedy decoding."""

    def offer(self, logits: Tensor, vocab_index: Tensor | None, width: int) -> list[Offered]:
        """The draft's most likely tokens."""
        return likeliest(logits, vocab_index, width)

    def verify(self, logits: Tensor, tree: DraftTree) -> TreeVerdict:
        """Walk down as long as a child is the target's argmax."""
        choices: list[int] = logits.argmax(-1).tolist()
        path: list[int] = []
        while True:
            node = path[-1] if path else ROOT
            child = _child_with(tree, node, choices[node + 1])
            if child is None:
                return TreeVerdict(tuple(path), choices[node + 1])
            path.append(child)


class SampledTreeRule:
    """The target's distribution decides; the output is distributed as plain sampling is.

    With `greedy` drafts the children are the draft's most likely tokens, the target's token is drawn, and the walk goes
    on where it is among the children. With `sampled` drafts the children are drawn one after the other without
    replacement; each is accepted with min(1, p(x) / q(x)), and after a rejection p becomes max(p - q, 0) and q loses
    the token, both renormalised.

    Source: recursive rejection sampling without replacement, arXiv:2402.14160, algorithm 2; multi-step rejection of
    SpecInfer, arXiv:2305.09781.
    """

    def __init__(self, sampling: Sampling, drafts: Literal["greedy", "sampled"] = "greedy") -> None:
        self._sampling, self._drafts = sampling, drafts
        self._generator = torch.Generator().manual_seed(sampling.seed)

    def offer(self, logits: Tensor, vocab_index: Tensor | None, width: int) -> list[Offered]:
        """The draft's most likely tokens, or draws from its distribution under the same temperature and filters."""
        if self._drafts == "greedy":
            return likeliest(logits, vocab_index, width)
        probs = self._probs(logits).double()
        # A race: the token of the k-th highest q / Exp(1) is distributed as the k-th draw without replacement.
        times = torch.empty(probs.shape, dtype=torch.float64).exponential_(generator=self._generator)
        drawn = (probs / times.to(probs.device)).topk(min(width, probs.shape[-1])).indices
        return [_drawn(*row, vocab_index) for row in zip(probs, drawn, strict=True)]

    def verify(self, logits: Tensor, tree: DraftTree) -> TreeVerdict:
        """Walk down as long as a child is accepted."""
        path: list[int] = []
        while True:
            node = path[-1] if path else ROOT
            probs = self._probs(logits[node + 1][None])[0].double()
            if node in tree.probs:
                child, probs = self._choose(tree, node, probs)
                drawn = None if child is not None else self._draw(probs)
            else:
                drawn = self._draw(probs)
                child = _child_with(tree, node, drawn)
            if child is None:
                assert drawn is not None, "a walk that ends has a token to end with"
                return TreeVerdict(tuple(path), drawn)
            path.append(child)

    def _choose(self, tree: DraftTree, node: int, target: Tensor) -> tuple[int | None, Tensor]:
        """The accepted child; or None, and the distribution [V] of the token in its place."""
        draft = torch.zeros_like(target)
        given = tree.probs[node]
        draft[: len(given)] = given
        for child in tree.children(node):
            token = tree.ids[child]
            draft = draft / draft.sum()  # here, since after the last child nothing may be left to divide by
            if self._uniform() * float(draft[token]) < float(target[token]):
                return child, target
            target = beyond(target, draft)
            target = target / target.sum()
            draft[token] = 0
        return None, target

    def _probs(self, logits: Tensor) -> Tensor:
        batch = SamplingBatch.of([self._sampling] * logits.shape[0], logits.device)
        return token_probs(logits, batch)

    def _draw(self, probs: Tensor) -> int:
        uniform = torch.tensor([self._uniform()], dtype=torch.float64, device=probs.device)
        return int(draw(probs[None], uniform))

    def _uniform(self) -> float:
        return float(torch.rand((), generator=self._generator, dtype=torch.float64))


def likeliest(logits: Tensor, vocab_index: Tensor | None, width: int) -> list[Offered]:
    """The `width` most likely tokens of each row of [R, D] logits, best first; among equals the lower draft id."""
    log_probs = logits.float().log_softmax(-1)
    width = min(width, log_probs.shape[-1])
    values, ids = log_probs.topk(width)
    if bool(((log_probs >= values[:, -1:]).sum(-1) > width).any()):  # topk does not say which of equals it takes
        ids = log_probs.sort(dim=-1, descending=True, stable=True).indices[:, :width]
        values = log_probs.gather(-1, ids)
    target_ids = ids if vocab_index is None else vocab_index[ids]
    rows = zip(values.tolist(), ids.tolist(), target_ids.tolist(), strict=True)
    return [Offered(children=tuple(_ranked(*row))) for row in rows]


def _drawn(probs: Tensor, drawn: Tensor, vocab_index: Tensor | None) -> Offered:
    """Children in the order in which they were drawn from [D] probabilities."""
    confidences = probs[drawn]
    elder = confidences.cumsum(0) - confidences
    left = torch.maximum(float(probs.sum()) - elder, confidences)
    target_ids = drawn if vocab_index is None else vocab_index[drawn]
    children = [
        Child(id=token, log_confidence=min(log, log_left, 0.0), log_priority=min(log_left, 0.0))
        for token, log, log_left in zip(
            target_ids.tolist(), confidences.log().tolist(), left.log().tolist(), strict=True
        )
        if log > float("-inf")  # the filters may leave fewer tokens than the tree is wide
    ]
    if vocab_index is not None:
        # Wide enough for the highest offered id; `verify` widens it to the target's vocabulary.
        probs = probs.new_zeros(int(vocab_index.max()) + 1).index_copy(0, vocab_index, probs)
    return Offered(children=tuple(children), probs=probs)


def tree_rule_for(sampling: Sampling, drafts: Literal["greedy", "sampled"] = "greedy") -> TreeRule:
    """The rule of a sampling setting."""
    return GreedyTreeRule() if sampling.is_greedy else SampledTreeRule(sampling, drafts)


def _ranked(values: Sequence[float], draft_ids: Sequence[int], target_ids: Sequence[int]) -> list[Child]:
    order = sorted(range(len(values)), key=lambda i: (-values[i], draft_ids[i]))
    logs = [min(values[i], 0.0) for i in order]  # a certain token's log may round to above 0
    return [Child(id=target_ids[i], log_confidence=log, log_priority=log) for i, log in zip(order, logs, strict=True)]


def _child_with(tree: DraftTree, node: int, token: int) -> int | None:
    return next((child for child in tree.children(node) if tree.ids[child] == token), None)
