"""The rules of chain drafting: how a draft token is chosen, what a verify pass accepts, which token follows.

Shapes: K draft tokens, V target vocabulary, D draft vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from eyas.decode.sampling import Sampling, SamplingBatch, beyond, draw, token_probs


@dataclass(frozen=True, slots=True)
class DraftToken:
    """One drafted token.

    Attributes:
        id: in target ids.
        probs: [V] the distribution it was drawn from; None when it was the draft's argmax.
    """

    id: int
    probs: Tensor | None = None


@dataclass(frozen=True, slots=True)
class ChainVerdict:
    """What a verify pass decided.

    Attributes:
        num_accepted_drafts: 0 … K.
        bonus_token: the target's own token after the last accepted draft.
    """

    num_accepted_drafts: int
    bonus_token: int


class Rule(Protocol):
    """Chooses drafts and verifies them. With no drafts, `verify` chooses the next token of plain decoding."""

    def draft(self, logits: Tensor, vocab_index: Tensor | None) -> DraftToken:
        """Choose a draft from [D] logits; `vocab_index` [D] maps to target ids (None: they are target ids)."""

    def verify(self, logits: Tensor, drafts: Sequence[DraftToken]) -> ChainVerdict:
        """Judge K drafts by the target's logits [K + 1, V]; row k stands after draft k (row 0 before all of them)."""


class GreedyRule:
    """The target's argmax decides; the output is that of plain greedy decoding."""

    def draft(self, logits: Tensor, vocab_index: Tensor | None) -> DraftToken:
        """The draft's argmax."""
        best = logits.argmax()
        return DraftToken(int(best if vocab_index is None else vocab_index[best]))

    def verify(self, logits: Tensor, drafts: Sequence[DraftToken]) -> ChainVerdict:
        """Accept drafts up to the first that is not the target's argmax."""
        choices: list[int] = logits.argmax(-1).tolist()
        accepted = 0
        while accepted < len(drafts) and drafts[accepted].id == choices[accepted]:
            accepted += 1
        return ChainVerdict(accepted, choices[accepted])


class SampledRule:
    """The target's distribution decides; the output is distributed as plain sampling is.

    With `greedy` drafts (what engines do by default) the target's token is drawn and the draft is accepted iff it is
    that token. With `sampled` drafts, draft x is accepted with min(1, p(x) / q(x)), and the token at the first
    rejection is drawn from max(p - q, 0), renormalised.

    Source: Leviathan et al., arXiv:2211.17192, algorithm 1.
    """

    def __init__(self, sampling: Sampling, drafts: Literal["greedy", "sampled"] = "greedy") -> None:
        self.sampling, self.drafts = sampling, drafts
        self._generator = torch.Generator().manual_seed(sampling.seed)

    def draft(self, logits: Tensor, vocab_index: Tensor | None) -> DraftToken:
        """The draft's argmax, or a draw from its distribution under the same temperature and filters."""
        if self.drafts == "greedy":
            return GreedyRule().draft(logits, vocab_index)
        probs = self._probs(logits[None])
        chosen = int(draw(probs, self._uniform(1, logits.device)))
        if vocab_index is None:
            return DraftToken(chosen, probs[0])
        # Wide enough for the highest offered id; `verify` widens it to the target's vocabulary.
        wide = probs.new_zeros(int(vocab_index.max()) + 1).index_copy(0, vocab_index, probs[0])
        return DraftToken(int(vocab_index[chosen]), wide)

    def verify(self, logits: Tensor, drafts: Sequence[DraftToken]) -> ChainVerdict:
        """Accept drafts one by one; the first rejected one is replaced, or a bonus token follows the last."""
        target_probs = self._probs(logits)
        for k, token in enumerate(drafts):
            replacement = self._reject(target_probs[k], token)
            if replacement is not None:
                return ChainVerdict(k, replacement)
        last = target_probs[len(drafts)]
        return ChainVerdict(len(drafts), int(draw(last[None], self._uniform(1, last.device))))

    def _reject(self, target: Tensor, token: DraftToken) -> int | None:
        """None when the draft is accepted, else the token that replaces it."""
        if token.probs is None:
            drawn = int(draw(target[None], self._uniform(1, target.device)))
            return None if drawn == token.id else drawn
        draft = torch.zeros_like(target)
        draft[: len(token.probs)] = token.probs
        if float(self._uniform(1, target.device)) * float(draft[token.id]) < float(target[token.id]):
            return None
        return int(draw(beyond(target, draft)[None], self._uniform(1, target.device)))

    def _probs(self, logits: Tensor) -> Tensor:
        batch = SamplingBatch.of([self.sampling] * logits.shape[0], logits.device)
        return token_probs(logits, batch)

    def upcoming(self, num: int) -> Tensor:
        """The next [num] random numbers, fp64 on the CPU. With greedy drafts each token of a text uses one."""
        state = self._generator.get_state()
        numbers = torch.rand(num, generator=self._generator, dtype=torch.float64)
        self._generator.set_state(state)
        return numbers

    def drew(self, num: int) -> None:
        """Another generator has used the first `num` upcoming numbers."""
        torch.rand(num, generator=self._generator, dtype=torch.float64)

    def _uniform(self, num: int, device: torch.device) -> Tensor:
        return torch.rand(num, generator=self._generator, dtype=torch.float64).to(device)


def rule_for(sampling: Sampling, drafts: Literal["greedy", "sampled"] = "greedy") -> Rule:
    """The rule of a sampling setting."""
    return GreedyRule() if sampling.is_greedy else SampledRule(sampling, drafts)
