"""Greedy generation of one sequence: the prompt, then captured rounds replayed ahead of the reader.

The host launches rounds ahead of what it has read, so that the device never waits for it; an end is noticed a launch or
two late, and what was computed past it is thrown away (the next prompt resets the device's state).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.engine.captured.captured_round import CapturedRound, draft_pass
from eyas.engine.captured.captured_weights import FastDraft
from eyas.engine.captured.prompt_pass import PromptPass, ReferencePrompt
from eyas.engine.captured.round_ops import ReferenceOps
from eyas.engine.captured.workspace import draft_workspace
from eyas.engine.cuda_graphs import captured
from eyas.engine.engine import Limits, require_prompt
from eyas.engine.generation import Generation, OnTokens
from eyas.errors import EyasError
from eyas.talk import Silent, Talk


class CacheTooShort(EyasError):
    """Prompt, answer and drafts do not fit the static cache."""

    code = "cache-too-short"


@dataclass(frozen=True, slots=True, kw_only=True)
class FastSettings:
    """How rounds are launched.

    Attributes:
        rounds_per_launch: rounds in one graph, 1 or more; tokens stream at this grain.
        lookahead: launches in flight before the oldest is read, 1 or more.
        captures: rounds are captured into CUDA graphs; off where the operations read on the host (`ReferenceOps`).
    """

    rounds_per_launch: int = 1
    lookahead: int = 2
    captures: bool = True

    def __post_init__(self) -> None:
        assert self.rounds_per_launch >= 1, "a launch holds at least one round"
        assert self.lookahead >= 1, "a launch must be made before it is read"


class FastEngine:
    """One sequence at a time through a `CapturedRound`; on CUDA its rounds are captured, elsewhere they run as written.

    Args:
        round_: target, draft and memory; its depth K is fixed.
        settings: launching.
        clock: seconds.
        talk: progress, while kernels are compiled.
        prompt: reads prompts into the round's cache; None: by plain operators.
    """

    def __init__(
        self,
        round_: CapturedRound,
        settings: FastSettings | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        talk: Talk | None = None,
        prompt: PromptPass | None = None,
    ) -> None:
        self._prompt = prompt or ReferencePrompt(round_.target, round_.cache)
        self.round, self.settings, self._clock = round_, settings or FastSettings(), clock
        self._is_cuda = round_.cache.device.type == "cuda"
        self._propose: Callable[[], None] = round_.propose
        self._launch: Callable[[], None] = self._run_rounds
        if self._is_cuda and self.settings.captures:
            round_.ops.compile_ahead([round_.run], talk or Silent())
            self._propose = captured(round_.propose) if round_.draft is not None else round_.propose
            self._launch = captured(self._run_rounds)
        num_slots = self.settings.lookahead + 1
        shape = (num_slots, self.settings.rounds_per_launch, round_.num_draft_tokens + 2)
        self._host = torch.zeros(shape, dtype=torch.int32, pin_memory=self._is_cuda)

    def generate(
        self,
        prompt_ids: Sequence[int],
        limits: Limits,
        *,
        on_tokens: OnTokens | None = None,
    ) -> Generation:
        """Continue a prompt, greedily; the same as `Engine.generate` at this engine's depth.

        Args:
            prompt_ids: at least one id.
            limits: when to end.
            on_tokens: called with each round's ids (none beyond the limits); it ends the text by returning True.

        Raises:
            PromptEmpty: no prompt ids.
            CacheTooShort: prompt, answer and what runs ahead do not fit.
        """
        self._check(prompt_ids, limits.max_new_tokens)
        text = Generation(num_draft_tokens=self.round.num_draft_tokens)
        started = self._clock()
        first = self.start(prompt_ids)
        text.prefill_s = self._clock() - started
        has_ended = text.begin(first, limits, on_tokens)
        records = self.rounds()
        while not has_ended:
            num_accepted, *choices = next(records)
            has_ended = text.add(choices[: num_accepted + 1], num_accepted, limits, on_tokens)
        text.decode_s = self._clock() - started - text.prefill_s
        return text

    def start(self, prompt_ids: Sequence[int]) -> int:
        """Read the prompt, fill both caches, propose the first drafts; gives the prompt's token."""
        round_, num, into = self.round, len(prompt_ids), self.round.rows.aux
        aux = None if round_.draft is None or into is None else into.new_empty(num, into.shape[1])
        first = self._prompt.read(prompt_ids, aux)
        state = round_.state
        state.tokens.zero_()
        state.tokens[:1] = first
        state.numbers.copy_(torch.tensor([num, num - 1, 0, 0, 0, 0], dtype=torch.int32))
        if round_.draft is not None:
            self._start_draft(round_.draft, prompt_ids, aux)
        return int(first)

    def _start_draft(self, draft: FastDraft, prompt_ids: Sequence[int], aux: Tensor | None) -> None:
        """Draft keys of all prompt positions but the last eagerly; that one, whose next token is new, by `propose`."""
        memory, state, into = self.round.draft_memory, self.round.state, self.round.rows.aux
        assert memory is not None, "a round with a draft has its memory"
        assert aux is not None, "a target with a draft has aux boundaries"
        assert into is not None, "a target with a draft has aux boundaries"
        if len(prompt_ids) > 1:
            rows = draft_workspace(draft, len(prompt_ids) - 1, 1)
            fused = torch.nn.functional.linear(aux[:-1], draft.fc)
            next_ids = torch.tensor(prompt_ids[1:], dtype=torch.int32, device=aux.device)
            draft_pass(ReferenceOps(position=0), draft, memory.cache, rows, next_ids, fused, state.zero, 0)
        into[:1] = aux[-1:]
        state.chosen.zero_()
        state.chosen[:1] = state.tokens[:1]
        self._propose()

    def rounds(self) -> Iterator[list[int]]:
        """Records of one round after the other, [accepted, choice 0, …, choice K], without end."""
        state, num_slots = self.round.state, self._host.shape[0]
        num_records, per_launch = state.records.shape[0], self.settings.rounds_per_launch
        assert num_records % per_launch == 0, "a launch's records lie in one piece"
        arrived: list[torch.cuda.Event | None] = [None] * num_slots
        num_launched = num_read = 0
        while True:
            while num_launched < num_read + self.settings.lookahead:
                slot, at = num_launched % num_slots, num_launched * per_launch % num_records
                self._launch()
                self._host[slot].copy_(state.records[at : at + per_launch], non_blocking=True)
                arrived[slot] = marked() if self._is_cuda else None
                num_launched += 1
            slot = num_read % num_slots
            event = arrived[slot]
            if event is not None:
                event.synchronize()
            yield from self._host[slot].tolist()
            num_read += 1

    def measure(self, num_positions: int) -> tuple[float, float]:
        """Seconds of a round, and of its drafting alone, at context length `num_positions`; the sequence is lost."""
        num = max(1, num_positions)
        self.round.state.numbers.copy_(torch.tensor([num, num - 1, 0, 0, 0, 0], dtype=torch.int32))
        per_launch = self.settings.rounds_per_launch
        whole = self._seconds(self._launch) / per_launch
        return whole, self._seconds(self._propose) if self.round.draft is not None else 0.0

    def _seconds(self, launch: Callable[[], None]) -> float:
        """Of one of several launches, back to back as rounds run."""
        num_launches = 20 if self._is_cuda else 1
        started = self._now()
        for _ in range(num_launches):
            launch()
        return (self._now() - started) / num_launches

    def _now(self) -> float:
        if self._is_cuda:
            torch.cuda.synchronize()
        return self._clock()

    def _run_rounds(self) -> None:
        for _ in range(self.settings.rounds_per_launch):
            self.round.run()

    def _check(self, prompt_ids: Sequence[int], max_new_tokens: int) -> None:
        require_prompt(prompt_ids)
        width = self.round.num_draft_tokens + 1
        ahead = (self.settings.lookahead + 1) * self.settings.rounds_per_launch * width
        has, needs = self.round.cache.shape[3], len(prompt_ids) + max_new_tokens + ahead + width
        if needs > has:
            raise CacheTooShort(
                f"the cache holds {has} positions and {needs} are needed",
                f"prompt {len(prompt_ids)} + answer {max_new_tokens} + rounds in flight {ahead + width}",
                "a captured round writes at fixed addresses: the cache cannot grow",
                "raise max_length, or ask for a shorter answer",
            )


def marked() -> torch.cuda.Event:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event
