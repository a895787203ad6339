"""Captured rounds of every depth over one memory: the host chooses a graph for each round.

A round here drafts first: the draft reads what the target has read since, drafts k tokens, and the target verifies
them. So depth is one number of one round, and a graph holds one round of one depth. The round of depth 0 leaves the
draft alone; the target's states are kept by position, and the draft reads them, block by block, when next asked.

Rounds are launched ahead of what the host has read, as in `captured.captured_engine`: a depth is chosen from the
rounds read so far, a launch or two old. Waiting for the newest one would leave the device idle in every round.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from eyas.engine.adaptive import AdaptiveDepth
from eyas.engine.captured.captured_engine import FastSettings, marked
from eyas.engine.captured.captured_round import DraftMemory, draft_memory, draft_pass, target_pass
from eyas.engine.captured.captured_weights import FastDraft, FastTarget
from eyas.engine.captured.prompt_pass import PromptPass, ReferencePrompt
from eyas.engine.captured.round_ops import ReferenceOps, RoundOps
from eyas.engine.captured.workspace import (
    DRAFTED,
    LAST_UNREAD,
    LENGTH,
    RoundState,
    Workspace,
    draft_workspace,
    round_state,
    target_workspace,
)
from eyas.engine.cost_table import CostTable
from eyas.engine.cuda_graphs import captured
from eyas.engine.engine import Limits
from eyas.engine.generation import Generation, OnTokens
from eyas.talk import Silent, Talk

_NUM_RECORDS = 64
_NUM_SAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadStates:
    """Target states queued for a draft that has not read them yet.

    Attributes:
        states: [L, A * E_target], the target's states by position; ids: [L], the token after each.
        rows, row_ids: [M, A * E_target] and [M], the block that is read next.
    """

    states: Tensor
    ids: Tensor
    rows: Tensor
    row_ids: Tensor


class AdaptiveRounds:
    """One sequence at a time, by rounds of any depth up to `most`.

    Args:
        ops: kernels, or the reference operators.
        target: with the draft's aux boundaries.
        most: the deepest draft, 1 … 7.
        max_length: positions of the caches.
        caches: the target's and the draft's keys and values.
        settings: launching; one round a launch.
        clock: seconds.
        is_simulated: acceptances are read from `state.simulated`, at most the depth (timing only).
        talk: progress, while kernels are compiled.
        prompt: reads prompts into the target's cache; None: by plain operators.
    """

    def __init__(
        self,
        ops: RoundOps,
        target: FastTarget,
        draft: FastDraft,
        *,
        most: int,
        max_length: int,
        caches: tuple[Tensor, Tensor | None],
        settings: FastSettings,
        clock: Callable[[], float] = time.perf_counter,
        is_simulated: bool = False,
        talk: Talk | None = None,
        prompt: PromptPass | None = None,
    ) -> None:
        self.ops, self.target, self.draft, self.most = ops, target, draft, most
        self._settings, self._clock, self._is_simulated = settings, clock, is_simulated
        device = target.norm.device
        self._is_cuda = device.type == "cuda"
        self.state: RoundState = round_state(most, _NUM_RECORDS, device)
        self._cache = caches[0]
        self._prompt = prompt or ReferencePrompt(target, caches[0])
        self._memory: DraftMemory = draft_memory(ops, draft, most + 1, max_length, caches[1])
        self._rows = [_verify_rows(ops, target, num) for num in range(1, most + 2)]
        self._unread = _unread_states(target, most + 1, max_length)
        self._launches, self._launch_reading = self._graphs(talk or Silent())
        self._host = torch.zeros(settings.lookahead + 1, most + 2, dtype=torch.int32, pin_memory=self._is_cuda)
        self._num_unread = 0  # upper bound of the positions that the draft has not read, the newest included

    def generate(
        self,
        prompt_ids: Sequence[int],
        limits: Limits,
        adaptive: AdaptiveDepth,
        *,
        on_tokens: OnTokens | None = None,
    ) -> Generation:
        """Continue a prompt, greedily; room for it and for what runs ahead is the caller's to make."""
        text = Generation(num_draft_tokens=self.most)
        started = self._clock()
        first = self.start(prompt_ids)
        if adaptive.is_on:
            self._read_prompt()
        text.prefill_s = self._clock() - started
        has_ended = text.begin(first, limits, on_tokens)
        rounds = self.rounds(adaptive)
        while not has_ended:
            depth, num_accepted, ids = next(rounds)
            has_ended = text.add(ids, num_accepted, limits, on_tokens, num_drafted=depth)
        text.decode_s = self._clock() - started - text.prefill_s
        return text

    def start(self, prompt_ids: Sequence[int]) -> int:
        """Read the prompt by the target alone and keep its states; gives the prompt's token."""
        num, state = len(prompt_ids), self.state
        first = self._prompt.read(prompt_ids, self._unread.states[:num])
        ids = torch.tensor(prompt_ids, dtype=torch.int32, device=self._cache.device)
        self._unread.ids[: num - 1] = ids[1:]
        self._unread.ids[num - 1 : num] = first
        state.tokens.zero_()
        state.tokens[:1] = first
        state.numbers.copy_(torch.tensor([num, num - 1, 0, 0, 0, num - 1], dtype=torch.int32))
        self._prompt_length, self._num_unread, self._has_read_prompt = num, num, False
        return int(first)

    def rounds(self, adaptive: AdaptiveDepth) -> Iterator[tuple[int, int, list[int]]]:
        """(depth, accepted drafts, ids) of one round after the other, without end."""
        state, num_slots = self.state, len(self._host)
        in_flight: list[tuple[int, torch.cuda.Event | None]] = []
        num_launched = 0
        while True:
            while len(in_flight) < self._settings.lookahead:
                depth = adaptive.best_now()
                self._launch(depth)
                at, slot = num_launched % _NUM_RECORDS, num_launched % num_slots
                self._host[slot].copy_(state.records[at], non_blocking=True)
                in_flight.append((depth, marked() if self._is_cuda else None))
                num_launched += 1
            slot = (num_launched - len(in_flight)) % num_slots
            depth, event = in_flight.pop(0)
            if event is not None:
                event.synchronize()
            num_accepted, *choices = self._host[slot].tolist()
            adaptive.saw(depth, depth, num_accepted)
            yield depth, num_accepted, choices[: num_accepted + 1]

    def measure_costs(self, num_positions: int) -> CostTable:
        """Time rounds of every depth in turns at context length `num_positions`; the sequence is lost."""
        num_rounds = 20 if self._is_cuda else 2
        samples: list[list[float]] = [[] for _ in range(self.most + 1)]
        for sample in range(_NUM_SAMPLES + 1):
            for depth, times in enumerate(samples):
                num = max(1, num_positions)
                self.state.numbers.copy_(torch.tensor([num, num - 1, 0, 0, num - 1, 0], dtype=torch.int32))
                started = self._now()
                for _ in range(num_rounds):
                    self._launches[depth]()
                if sample:  # the first one warms up
                    times.append((self._now() - started) / num_rounds)
        return CostTable.of_samples(samples)

    def _now(self) -> float:
        if self._is_cuda:
            torch.cuda.synchronize()
        return self._clock()

    def _launch(self, depth: int) -> None:
        """One round; before a drafted one the draft reads until what is left fits the round's own block."""
        if depth:
            if not self._has_read_prompt:
                self._read_prompt()
            while self._num_unread > self.most + 1:
                self._launch_reading()
                self._num_unread -= self.most + 1
            self._num_unread = 0
        self._launches[depth]()
        self._num_unread += depth + 1

    def _read_prompt(self) -> None:
        """All prompt positions but the last in one pass; graphs of few rows would need many passes."""
        num, numbers = self._prompt_length - 1, self.state.numbers
        if num:
            rows = draft_workspace(self.draft, num, 1)
            fused = torch.nn.functional.linear(self._unread.states[:num], self.draft.fc)
            cache = self._memory.cache
            draft_pass(
                ReferenceOps(position=0), self.draft, cache, rows, self._unread.ids[:num], fused, self.state.zero, 0
            )
        numbers[DRAFTED] = num
        numbers[LAST_UNREAD] = numbers[LENGTH] - 1 - num
        self._num_unread -= num
        self._has_read_prompt = True

    def _read_block(self) -> None:
        self._rebuild()
        self.ops.advance(self.state.numbers, self.most + 1)

    def _rebuild(self) -> Tensor:
        """The draft reads M positions from where it stands; rows past the text are computed and never seen."""
        unread, memory = self._unread, self._memory
        self.ops.fetch_states(unread.states, unread.ids, self.state.numbers, unread.rows, unread.row_ids)
        self.ops.linear(self.draft.fc, unread.rows, memory.fused, residual=None)
        at = self.state.at(DRAFTED)
        return draft_pass(self.ops, self.draft, memory.cache, memory.rows, unread.row_ids, memory.fused, at, 0)

    def _round(self, depth: int) -> None:
        """Draft `depth` tokens, verify, accept."""
        if depth:
            self._propose(depth)
        state, target, rows = self.state, self.target, self._rows[depth]
        tokens, chosen = state.tokens[: depth + 1], state.chosen[: depth + 1]
        last = target_pass(self.ops, target, self._cache, rows, tokens, state.at(LENGTH), 0)
        self.ops.best_tokens(target.head, last, None, target.norm, target.eps, rows.best, rows.best_ids)
        simulated = state.simulated if self._is_simulated else None
        self.ops.accept(rows.best, rows.best_ids, tokens, chosen, state.numbers, state.records, simulated)
        assert rows.aux is not None, "a target with a draft has aux boundaries"
        self.ops.store_states(
            rows.aux, chosen, state.numbers, self._unread.states, self._unread.ids, is_drafted=depth > 0
        )

    def _propose(self, depth: int) -> None:
        state, memory = self.state, self._memory
        out = self._rebuild()
        self._pick(out, state.at(LAST_UNREAD), 1, depth)
        for step in range(1, depth):
            token = state.tokens[step : step + 1]
            where = (state.at(LENGTH), step - 1)
            out = draft_pass(self.ops, self.draft, memory.cache, memory.one, token, memory.carried, *where)
            self._pick(out, state.zero, step + 1, depth)

    def _pick(self, out: Tensor, index: Tensor, slot: int, depth: int) -> None:
        draft, one = self.draft, self._memory.one
        self.ops.best_tokens(draft.head, out, index, draft.norm, draft.eps, one.best, one.best_ids)
        token = self.state.tokens[slot : slot + 1]
        copy = None if slot == depth else (out, index, self._memory.carried)
        self.ops.pick(one.best, one.best_ids, draft.offsets, token, copy)

    def _graphs(self, talk: Talk) -> tuple[list[Callable[[], None]], Callable[[], None]]:
        """A round of each depth, and the reading of a block."""
        rounds: list[Callable[[], None]] = [partial(self._round, depth) for depth in range(self.most + 1)]
        if not (self._is_cuda and self._settings.captures):
            return rounds, self._read_block
        self.ops.compile_ahead([*rounds, self._read_block], talk)
        return [captured(function) for function in rounds], captured(self._read_block)


def _verify_rows(ops: RoundOps, target: FastTarget, num_rows: int) -> Workspace:
    return target_workspace(target, num_rows, ops.num_parts(target.head, num_rows))


def _unread_states(target: FastTarget, num_rows: int, max_length: int) -> UnreadStates:
    like, width = target.norm, target.norm.shape[0] * len(target.aux_boundaries)

    def states(num: int) -> Tensor:
        return torch.zeros(num, width, dtype=like.dtype, device=like.device)

    def ids(num: int) -> Tensor:
        return torch.zeros(num, dtype=torch.int32, device=like.device)

    return UnreadStates(states=states(max_length), ids=ids(max_length), rows=states(num_rows), row_ids=ids(num_rows))
