"""Greedy generation of one sequence: the prompt eagerly, then captured rounds replayed ahead of the reader.

The host launches rounds ahead of what it has read, so that the device never waits for it; a stop is noticed a launch or
two late, and what was computed past it is thrown away (the device's state is reset by the next prompt).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eyas.engine.cuda_ops import EagerOps
from eyas.engine.cuda_round import Round, draft_pass, target_pass
from eyas.engine.cuda_weights import FastDraft
from eyas.engine.cuda_workspace import draft_workspace, target_workspace
from eyas.errors import EyasError


class CacheTooShort(EyasError):
    """Prompt, answer and drafts do not fit the static cache."""

    code = "cache-too-short"


@dataclass(frozen=True, slots=True, kw_only=True)
class FastSettings:
    """How rounds are launched.

    Attributes:
        rounds_per_launch: rounds in one graph, 1 or more; tokens stream at this grain.
        lookahead: launches in flight before the oldest is read, 1 or more.
        captures: rounds are captured into CUDA graphs; off where the operations read on the host (`EagerOps`).
    """

    rounds_per_launch: int = 1
    lookahead: int = 2
    captures: bool = True

    def __post_init__(self) -> None:
        assert self.rounds_per_launch >= 1, "a launch holds at least one round"
        assert self.lookahead >= 1, "a launch must be made before it is read"


@dataclass(slots=True)
class FastAnswer:
    """What one prompt gave.

    Attributes:
        token_ids: the answer, the stop token included.
        accepted: accepted drafts of each round, counted only inside the answer.
    """

    token_ids: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)


class FastEngine:
    """One sequence at a time through a `Round`; on CUDA its rounds are captured, elsewhere they run as written.

    Args:
        round_: target, draft and memory.
        settings: launching.
    """

    def __init__(self, round_: Round, settings: FastSettings) -> None:
        self.round, self.settings = round_, settings
        device = round_.cache.device
        self._is_cuda = device.type == "cuda"
        self._propose: Callable[[], None] = round_.propose
        self._launch: Callable[[], None] = self._run_rounds
        if self._is_cuda and settings.captures:
            self._propose = _captured(round_.propose)
            self._launch = _captured(self._run_rounds)
        num_slots = settings.lookahead + 1
        shape = (num_slots, settings.rounds_per_launch, round_.num_draft_tokens + 2)
        self._host = torch.zeros(shape, dtype=torch.int32, pin_memory=self._is_cuda)

    def _run_rounds(self) -> None:
        for _ in range(self.settings.rounds_per_launch):
            self.round.run()

    def start(self, prompt_ids: Sequence[int]) -> int:
        """Read the prompt, fill both caches, propose the first drafts; gives the prompt's token.

        Args:
            prompt_ids: at least one token.
        """
        round_, num = self.round, len(prompt_ids)
        state, device = round_.state, round_.cache.device
        ids = torch.tensor(prompt_ids, dtype=torch.int32, device=device)
        eager, target = EagerOps(), round_.target
        rows = target_workspace(target, num, 1)
        last = target_pass(eager, target, round_.cache, rows, ids, state.zero, 0)[-1:]
        eager.best_tokens(target.head, last, None, target.norm, target.eps, rows.best[:1], rows.best_ids[:1])
        first = rows.best_ids[0, :1]
        state.tokens.zero_()
        state.tokens[:1] = first
        state.numbers.copy_(torch.tensor([num, num - 1, 0, 0], dtype=torch.int32))
        if round_.draft is not None:
            assert rows.aux is not None and round_.rows.aux is not None, "a target with a draft has aux boundaries"
            if num > 1:
                self._fill_draft(round_.draft, ids[1:], rows.aux[:-1])
            round_.rows.aux[:1] = rows.aux[-1:]
            state.chosen.zero_()
            state.chosen[:1] = first
            self._propose()
        return int(first)

    def _fill_draft(self, draft: FastDraft, next_ids: Tensor, aux: Tensor) -> None:
        """Draft keys of all prompt positions but the last, whose next token only the target's choice tells."""
        memory = self.round.draft_memory
        assert memory is not None, "a round with a draft has its memory"
        rows = draft_workspace(draft, len(next_ids), 1)
        fused = torch.nn.functional.linear(aux, draft.fc)
        draft_pass(EagerOps(), draft, memory.cache, rows, next_ids, fused, self.round.state.zero, 0)

    def rounds(self) -> Iterator[list[int]]:
        """Records of one round after the other, [accepted, choice 0, …, choice K], without end."""
        settings, state = self.settings, self.round.state
        num_records, per_launch = state.records.shape[0], settings.rounds_per_launch
        assert num_records % per_launch == 0 and num_records >= per_launch, "a launch's records lie in one piece"
        events: list[torch.cuda.Event | None] = [None] * (settings.lookahead + 1)
        launched = 0
        for read in range(1_000_000_000):
            while launched <= read + settings.lookahead - 1:
                slot, at = launched % len(events), launched * per_launch % num_records
                self._launch()
                self._host[slot].copy_(state.records[at : at + per_launch], non_blocking=True)
                if self._is_cuda:
                    event = torch.cuda.Event()
                    event.record()
                    events[slot] = event
                launched += 1
            slot = read % len(events)
            waiting = events[slot]
            if waiting is not None:
                waiting.synchronize()
            yield from self._host[slot].tolist()

    def generate(
        self, prompt_ids: Sequence[int], *, max_new_tokens: int, stop_ids: frozenset[int] = frozenset()
    ) -> Iterator[tuple[list[int], int]]:
        """New tokens as they come, and how many of them were drafts: first the prompt's token, then each round's.

        Raises:
            CacheTooShort: prompt + answer + what runs ahead do not fit.
        """
        self._check_room(len(prompt_ids), max_new_tokens)
        tokens, accepted, num_left = [self.start(prompt_ids)], 0, max_new_tokens
        records = self.rounds()
        while True:
            kept = _cut(tokens, num_left, stop_ids)
            yield kept, min(accepted, len(kept))
            num_left -= len(kept)
            if num_left == 0 or (kept and kept[-1] in stop_ids):
                return
            accepted, *choices = next(records)
            tokens = choices[: accepted + 1]

    def answer(
        self, prompt_ids: Sequence[int], *, max_new_tokens: int, stop_ids: frozenset[int] = frozenset()
    ) -> FastAnswer:
        """The whole answer with its acceptances."""
        out = FastAnswer()
        steps = self.generate(prompt_ids, max_new_tokens=max_new_tokens, stop_ids=stop_ids)
        for i, (tokens, accepted) in enumerate(steps):
            out.token_ids += tokens
            if i > 0:
                out.accepted.append(accepted)
        return out

    def _check_room(self, num_prompt: int, max_new_tokens: int) -> None:
        width = self.round.num_draft_tokens + 1
        ahead = (self.settings.lookahead + 1) * self.settings.rounds_per_launch * width
        has, needs = self.round.cache.shape[3], num_prompt + max_new_tokens + ahead + width
        if needs > has:
            raise CacheTooShort(
                f"the cache holds {has} positions and {needs} are needed",
                f"prompt {num_prompt} + answer {max_new_tokens} + rounds in flight {ahead + width}",
                "a captured round writes at fixed addresses: the cache cannot grow",
                "raise max_length, or ask for a shorter answer",
            )


def _cut(tokens: list[int], num_left: int, stop_ids: frozenset[int]) -> list[int]:
    for i, token in enumerate(tokens[:num_left]):
        if token in stop_ids:
            return tokens[: i + 1]
    return tokens[:num_left]


def _captured(function: Callable[[], None]) -> Callable[[], None]:
    """`function` as a CUDA graph; run before capture, so that kernels are compiled and scratch memory is made."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay
