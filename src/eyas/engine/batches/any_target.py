"""Batches of any `transformers` model: prompts padded on the left, all of a batch to its end. Right, not fast.

Unlike the fast path nobody joins before the whole batch has ended, so that requests are sorted by their longest text.

Shapes: B sequences, T positions, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence

import torch

from eyas.decode.sampling import SamplingBatch, draw, token_probs
from eyas.engine.batches.generator import Completion, Request, SequenceText
from eyas.models.target import Target
from eyas.talk import Talk


class TransformersBatch:
    """Runs requests through a model.

    Args:
        target: the model.
        decode: ids to text, for stop strings.
        talk: progress.
        max_batch: most sequences at a time.
    """

    def __init__(self, target: Target, decode: Callable[[Sequence[int]], str], talk: Talk, *, max_batch: int) -> None:
        self._target, self._decode, self._talk, self._max_batch = target, decode, talk, max_batch

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
        while any(text.finish is None for text in texts):
            states = self._target.forward(tokens, cache=cache, mask=mask)
            logits = self._target.logits(states.last[:, -1])
            if settings.num_greedy == len(texts):
                chosen = logits.argmax(-1)
            else:
                uniform = torch.stack([torch.rand((), generator=g, dtype=torch.float64) for g in generators])
                chosen = draw(token_probs(logits, settings), uniform.to(device))
            for text, token in zip(texts, chosen.tolist(), strict=True):
                if text.finish is None:
                    text.add([token], self._decode)
            tokens = chosen[:, None]
            mask = torch.cat((mask, torch.ones_like(tokens)), 1)
        return [text.completion() for text in texts]
