"""Thousands of prompts answered in batches: sequences join and leave between steps. Plain decoding.

A sequence's text depends on its own prompt, settings and seed only (but for the rounding of batched kernels).
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from eyas.decode.sampling import Sampling, SamplingBatch, draw, token_probs
from eyas.talk import Talk

_STOP_TAIL_TOKENS = 24  # a stop string is looked for in the text of so many last tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt.

    Attributes:
        id: unique within a run.
        prompt_ids: at least one.
        max_new_tokens: at least 1.
        sampling: greedy by default.
        stop_ids: end the text, themselves included.
        stop_strings: end the text when its decoded end contains one; the token that completes it is kept.
    """

    id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer.

    Attributes:
        id: of the request.
        ids: new token ids, at least one.
        finish: a stop id or string, or the limit.
    """

    id: str
    ids: tuple[int, ...]
    finish: Literal["stop", "length"]


class BatchModel(Protocol):
    """A target with many sequences in its cache; see `BatchLlama`."""

    num_slots: int

    @property
    def device(self) -> torch.device:
        """Where logits are."""

    def prefill(self, prompts: Sequence[Sequence[int]], first_slot: int) -> Tensor:
        """Read prompts into consecutive slots; [B, V] logits after each."""

    def step(self, ids: Tensor, lengths: Tensor, longest: int) -> Tensor:
        """Read one id more in each of the first B slots; [B, V] logits."""

    def move(self, source: int, to: int, length: int) -> None:
        """Copy a sequence into another slot."""


class _Sequence:
    """An active request: what it has written, how long it is in the cache, its own random numbers."""

    def __init__(self, request: Request) -> None:
        self.request, self.ids, self.cached = request, list[int](), len(request.prompt_ids)
        self.chance = random.Random(request.sampling.seed)

    def finish(self, decode: Callable[[Sequence[int]], str]) -> Literal["stop", "length"] | None:
        """Why the text has ended; None while it has not."""
        request = self.request
        if self.ids[-1] in request.stop_ids:
            return "stop"
        if request.stop_strings:
            tail = decode(self.ids[-_STOP_TAIL_TOKENS:])
            if any(stop in tail for stop in request.stop_strings):
                return "stop"
        return "length" if len(self.ids) >= request.max_new_tokens else None


class BatchGenerator:
    """Runs requests through a model.

    Args:
        model: with its cache.
        decode: ids to text, for stop strings.
        max_prefill_tokens: padded prompt tokens read at once.
        clock: seconds.
    """

    def __init__(
        self,
        model: BatchModel,
        decode: Callable[[Sequence[int]], str],
        *,
        max_prefill_tokens: int = 4096,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model, self._decode, self._clock = model, decode, clock
        self._max_prefill_tokens = max_prefill_tokens
        self._active: list[_Sequence] = []
        self._settings: SamplingBatch | None = None  # of the active sequences; None after a change
        self._last_round: Sequence[_Sequence] = ()

    def run(self, requests: Sequence[Request], talk: Talk) -> Iterator[Completion]:
        """Answers in the order in which they end."""
        waiting, started, num_tokens = deque(requests), self._clock(), 0
        with talk.progress("generate", len(requests), "prompts") as progress:
            while waiting or self._active:
                if self._should_join(len(waiting)):
                    self._join(waiting)
                else:
                    self._step()
                num_tokens += len(self._last_round)
                for completion in self._leave():
                    progress.advance()
                    yield completion
                seconds = self._clock() - started
                progress.say(f"{num_tokens / seconds if seconds else 0:.0f} tokens/s, {len(self._active)} at a time")

    def _should_join(self, num_waiting: int) -> bool:
        """Wait for a few free slots: reading prompts one by one would stop everybody else each time."""
        num_free = self._model.num_slots - len(self._active)
        return num_waiting > 0 and (not self._active or num_free >= max(1, self._model.num_slots // 16))

    def _join(self, waiting: deque[Request]) -> None:
        first, joining, longest = len(self._active), list[_Sequence](), 0
        while waiting and first + len(joining) < self._model.num_slots:
            longest = max(longest, len(waiting[0].prompt_ids))
            if joining and longest * (len(joining) + 1) > self._max_prefill_tokens:
                break
            joining.append(_Sequence(waiting.popleft()))
        logits = self._model.prefill([s.request.prompt_ids for s in joining], first)
        self._active += joining
        self._settings = None
        self._write(joining, logits, SamplingBatch.of([s.request.sampling for s in joining], logits.device))

    def _step(self) -> None:
        active, device = self._active, self._model.device
        ids = torch.tensor([s.ids[-1] for s in active], device=device)
        lengths = [s.cached for s in active]
        logits = self._model.step(ids, torch.tensor(lengths, device=device), max(lengths))
        for sequence in active:
            sequence.cached += 1
        if self._settings is None:
            self._settings = SamplingBatch.of([s.request.sampling for s in active], device)
        self._write(active, logits, self._settings)

    def _write(self, sequences: Sequence[_Sequence], logits: Tensor, settings: SamplingBatch) -> None:
        """Choose each sequence's next token."""
        if all(s.request.sampling.is_greedy for s in sequences):
            chosen = logits.argmax(-1)
        else:
            uniform = torch.tensor([s.chance.random() for s in sequences], dtype=torch.float64)
            chosen = draw(token_probs(logits, settings), uniform.to(logits.device))
        for sequence, token in zip(sequences, chosen.tolist(), strict=True):
            sequence.ids.append(token)
        self._last_round = sequences

    def _leave(self) -> Iterator[Completion]:
        """Take out sequences that have ended; the last one moves into the hole."""
        slot = 0
        while slot < len(self._active):
            sequence = self._active[slot]
            finish = sequence.finish(self._decode)
            if finish is None:
                slot += 1
                continue
            last = self._active.pop()
            if last is not sequence:
                self._model.move(len(self._active), slot, last.cached)
                self._active[slot] = last
            self._settings = None
            yield Completion(id=sequence.request.id, ids=tuple(sequence.ids), finish=finish)
