"""Batches of any `transformers` model: prompts padded on the left, each batch run to its end. Exact, not fast.

Unlike on the fast path, no sequence joins before the whole batch has ended; requests are therefore sorted by their
longest text. The cache of a sequence is measured, since caches differ from model to model.

Shapes: B sequences, T positions, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from eyas.decode.sampling import SamplingBatch, draw, token_probs
from eyas.engine.batches.generator import Completion, Request, SequenceText
from eyas.models.states import States
from eyas.models.target import Target, require_finite
from eyas.talk import Talk

_FEW = 8  # positions after which recurrent states have their full size


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """What one sequence takes of a cache.

    Attributes:
        position_bytes: of each position.
        state_bytes: of recurrent states, whatever the length.
    """

    position_bytes: int
    state_bytes: int

    def of(self, positions: int) -> int:
        """Bytes of a sequence of `positions` positions."""
        return self.state_bytes + positions * self.position_bytes


def cache_size(target: Target) -> CacheSize:
    """Measured on two short texts."""
    short, long = (_cached_bytes(target, num) for num in (_FEW, 2 * _FEW))
    position_bytes = (long - short) // _FEW
    return CacheSize(position_bytes=position_bytes, state_bytes=short - _FEW * position_bytes)


def _cached_bytes(target: Target, num: int) -> int:
    cache = target.new_cache()
    target.forward(torch.zeros(1, num, dtype=torch.int64, device=target.device), cache=cache)
    return sum(_bytes(vars(layer)) for layer in cache.layers)


def _bytes(held: object) -> int:
    if isinstance(held, Tensor):
        return held.nbytes
    return sum(map(_bytes, held.values())) if isinstance(held, Mapping) else 0


class TransformersBatch:
    """Runs requests through a model.

    Args:
        target: the model.
        decode: ids to text, for stop strings.
        talk: progress.
        max_batch: most sequences at a time.
        max_prefill_tokens: padded prompt tokens read at once, at least two of each prompt.
    """

    def __init__(
        self,
        target: Target,
        decode: Callable[[Sequence[int]], str],
        talk: Talk,
        *,
        max_batch: int,
        max_prefill_tokens: int = 16384,
    ) -> None:
        self._target, self._decode, self._talk, self._max_batch = target, decode, talk, max_batch
        self._max_prefill_tokens = max_prefill_tokens

    def run(self, requests: Sequence[Request]) -> Iterator[Completion]:
        """Answers, batch after batch."""
        ordered = sorted(requests, key=lambda r: len(r.prompt_ids) + r.max_new_tokens, reverse=True)
        with self._talk.progress("generate", len(requests), "prompts") as progress:
            for start in range(0, len(ordered), self._max_batch):
                for completion in self._batch(ordered[start : start + self._max_batch]):
                    progress.advance()
                    yield completion

    @torch.no_grad()
    def _batch(self, requests: Sequence[Request]) -> list[Completion]:
        device = self._target.device
        texts = [SequenceText(request) for request in requests]
        settings = SamplingBatch.of([r.sampling for r in requests], device)
        generators = [torch.Generator().manual_seed(r.sampling.seed) for r in requests]
        longest = max(len(r.prompt_ids) for r in requests)
        tokens = torch.tensor([[0] * (longest - len(r.prompt_ids)) + list(r.prompt_ids) for r in requests])
        mask = torch.tensor([[0] * (longest - len(r.prompt_ids)) + [1] * len(r.prompt_ids) for r in requests])
        tokens, mask, cache = tokens.to(device), mask.to(device), self._target.new_cache()
        states = self._read(tokens, mask, cache)
        require_finite(self._target.logits(states.last[:, -1]), self._target.name)
        while True:
            logits = self._target.logits(states.last[:, -1])
            if settings.num_greedy == len(texts):
                chosen = logits.argmax(-1)
            else:
                uniform = torch.stack([torch.rand((), generator=g, dtype=torch.float64) for g in generators])
                chosen = draw(token_probs(logits, settings), uniform.to(device))
            for text, token in zip(texts, chosen.tolist(), strict=True):
                if text.finish is None:
                    text.add([token], self._decode)
            if all(text.finish is not None for text in texts):
                return [text.completion() for text in texts]
            mask = torch.cat((mask, torch.ones_like(chosen[:, None])), 1)
            states = self._target.forward(chosen[:, None], cache=cache, mask=mask)

    def _read(self, tokens: Tensor, mask: Tensor, cache: DynamicCache) -> States:
        """Prompts [B, T], some columns at a time: activations of all at once would take more than the cache."""
        # Two at least: recurrent layers take a single column for a step, in which no row is padding.
        num_columns = max(2, self._max_prefill_tokens // len(tokens))
        for start in range(0, tokens.shape[1], num_columns):
            end = start + num_columns
            states = self._target.forward(tokens[:, start:end], cache=cache, mask=mask[:, :end])
        return states
