"""A target and drafts with fixed logits: what comes next depends on the last two tokens only, by a seeded table."""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from eyas.engine.sequence_protocols import TargetOutput

VOCAB = 13


@cache
def next_logits(before: int, last: int) -> Tensor:
    """[VOCAB] logits after the tokens `before`, `last`."""
    generator = torch.Generator().manual_seed(1000 * before + last + 7)
    return 2.0 * torch.randn(VOCAB, generator=generator)


class StubTarget:
    """Checks how it is used: its aux states are (position, token), which a draft can hold against what it expects."""

    vocab_size = VOCAB

    def __init__(self, logits: Callable[[int, int], Tensor] = next_logits) -> None:
        self._logits = logits
        self.ids: list[int] = []
        self.num_passes = 0

    @property
    def length(self) -> int:
        return len(self.ids)

    def start(self, capacity: int, aux_boundaries: Sequence[int]) -> None:
        self.ids, self.capacity, self._aux = [], capacity, len(aux_boundaries)

    def prefill(self, ids: Sequence[int]) -> TargetOutput:
        out = self.forward(ids)
        return TargetOutput(logits=out.logits[-1:], aux_states=out.aux_states)

    def forward(self, ids: Sequence[int]) -> TargetOutput:
        self.num_passes += 1
        first = len(self.ids)
        self.ids += ids
        assert len(self.ids) <= self.capacity, "more positions than were asked for"
        rows = [self._logits(self.ids[t - 1] if t else 0, self.ids[t]) for t in range(first, len(self.ids))]
        aux = torch.tensor([[float(t), float(self.ids[t])] for t in range(first, len(self.ids))])
        return TargetOutput(logits=torch.stack(rows), aux_states=aux[:, : 2 * self._aux])

    def truncate(self, length: int) -> None:
        del self.ids[length:]


class StubDraft:
    """Offers `logits(before, last, how many drafts before it)`; insists on the truth after each round."""

    aux_boundaries = (1,)

    def __init__(self, logits: Callable[[int, int, int], Tensor], vocab_index: Tensor | None = None) -> None:
        self._logits, self.vocab_index = logits, vocab_index
        self.start(0)

    def start(self, capacity: int) -> None:
        self._confirmed: list[int] = []  # tokens at positions 1 …; position 0 is never told
        self._drafted: list[int] = []

    def read(self, next_ids: Sequence[int], aux_states: Tensor) -> Tensor:
        self._drafted = []
        for token, (position, token_before) in zip(next_ids, aux_states.tolist(), strict=True):
            assert position == len(self._confirmed), "aux states of another position"
            if self._confirmed:
                assert token_before == self._confirmed[-1], "aux states of another token"
            else:
                self._first = int(token_before)
            self._confirmed.append(token)
        return self._offer()

    def step(self, draft_id: int) -> Tensor:
        self._drafted.append(draft_id)
        return self._offer()

    def _offer(self) -> Tensor:
        seen = [self._first, *self._confirmed, *self._drafted]
        logits = self._logits(seen[-2], seen[-1], len(self._drafted))
        return logits if self.vocab_index is None else logits[self.vocab_index]


def right_draft() -> StubDraft:
    """Always the target's own choice."""
    return StubDraft(lambda before, last, _: next_logits(before, last))


def wrong_draft() -> StubDraft:
    """Never the target's choice."""
    return StubDraft(lambda before, last, _: -next_logits(before, last))


def moody_draft() -> StubDraft:
    """Right about two times in three, by the tokens and the depth."""

    def logits(before: int, last: int, depth: int) -> Tensor:
        right = next_logits(before, last)
        return -right if (before + 2 * last + depth) % 3 == 0 else right

    return StubDraft(logits)
