"""A draft whose guesses are a fixed table: right always, never, or as told. Stands where `Eagle3Draft` does."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import torch

from eyas.models.draft import TttStep

VOCAB = 16


class StubDraft:
    """`guess(t, k, text)` is the token that draft k + 1 from index t proposes."""

    def __init__(self, guess: Callable[[int, int, list[int]], int], aux_boundaries=(1,)) -> None:
        self.spec = SimpleNamespace(aux_boundaries=aux_boundaries)
        self._guess = guess

    def ttt_steps(self, input_ids: torch.Tensor, aux: torch.Tensor, num_steps: int) -> Iterator[TttStep]:
        for k in range(num_steps):
            logits = torch.zeros(*input_ids.shape, VOCAB)
            for row in range(input_ids.shape[0]):
                for t in range(input_ids.shape[1]):
                    logits[row, t, self._guess(t, k, input_ids[row].tolist())] = 1.0
            yield TttStep(state=logits, normed=logits)

    def head(self, normed: torch.Tensor) -> torch.Tensor:
        return normed

    def to_target_ids(self, ids: torch.Tensor) -> torch.Tensor:
        return ids


def right(t: int, k: int, text: list[int]) -> int:
    return text[t + 2 + k] if t + 2 + k < len(text) else 0


def wrong(t: int, k: int, text: list[int]) -> int:
    return (right(t, k, text) + 1) % VOCAB
