"""Thousands of prompts answered in batches: sequences join and leave between blocks of steps. Plain decoding.

A sequence's text depends on its own prompt, settings and seed only (but for the rounding of batched kernels), and is
the text of the single-stream engine.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from eyas.decode.sampling import Sampling
from eyas.engine.batches.batch_runner import BatchRunner, Block
from eyas.engine.batches.batch_state import NewRow
from eyas.engine.engine import require_prompt
from eyas.talk import Progress, Talk

_STOP_TAIL_TOKENS = 24  # a stop string is searched in the text of the last tokens: this many, or one per byte


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

    def __post_init__(self) -> None:
        require_prompt(self.prompt_ids, f"request '{self.id}'")
        assert self.max_new_tokens >= 1, "a text has at least one token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer.

    Attributes:
        id: of the request.
        ids: new token ids, at least one; none where the request was refused.
        finish: a stop id or string, the limit, or a server that refused the request.
        text: of the ids, in a server's words, or why it refused; None where it is not known.
        accepted: per round of speculation, accepted drafts inside the text (`Generation.accepted`).
    """

    id: str
    ids: tuple[int, ...]
    finish: Literal["stop", "length", "refused"]
    text: str | None = None
    accepted: tuple[int, ...] = ()


class SequenceText:
    """What a request has written so far, and why it has ended (None while it has not)."""

    def __init__(self, request: Request) -> None:
        self.request, self.ids, self.accepted = request, list[int](), list[int]()
        self.finish: Literal["stop", "length"] | None = None
        self._tail = max([_STOP_TAIL_TOKENS, *(len(stop.encode()) + 1 for stop in request.stop_strings)])

    def completion(self) -> Completion:
        """Of a text that has ended."""
        assert self.finish is not None, "the text has not ended"
        return Completion(id=self.request.id, ids=tuple(self.ids), finish=self.finish, accepted=tuple(self.accepted))

    def add(self, tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> int:
        """Take tokens up to the end of the text; how many were taken."""
        request, before = self.request, len(self.ids)
        kept = min(len(tokens), request.max_new_tokens - before)
        at = next((i for i in range(kept) if tokens[i] in request.stop_ids), None)
        self.ids += tokens[: kept if at is None else at + 1]
        ended = self._stop_string(before, decode) if request.stop_strings else None
        if ended is not None:
            del self.ids[ended:]
        if at is not None or ended is not None:
            self.finish = "stop"
        elif len(self.ids) == request.max_new_tokens:
            self.finish = "length"
        return len(self.ids) - before

    def _stop_string(self, before: int, decode: Callable[[Sequence[int]], str]) -> int | None:
        """How many ids the text has when a stop string has come with one of the ids after the first `before`."""

        def is_in(text: str) -> bool:
            return any(stop in text for stop in self.request.stop_strings)

        if not is_in(decode(self.ids[max(0, before + 1 - self._tail) :])):
            return None  # one decoding for a whole block, in nearly all cases
        ends = range(before + 1, len(self.ids) + 1)
        return next((end for end in ends if is_in(decode(self.ids[max(0, end - self._tail) : end]))), None)


class _Sequence:
    """A text that has a row, or whose last tokens are still to be read."""

    def __init__(self, request: Request, row: int) -> None:
        self.request, self.text = request, SequenceText(request)
        self.row: int | None = row  # None once nothing more is launched for it
        self.num_flying = 0  # tokens that are in flight at least: one per step

    @property
    def num_sure(self) -> int:
        """Tokens read, and in flight at least."""
        return len(self.text.ids) + self.num_flying


@dataclass(frozen=True, slots=True)
class _Launched:
    """A block in flight: per row the sequence that it belongs to, and whether its token before the block is news."""

    block: Block
    steps: int
    rows: tuple[tuple[int, _Sequence, bool], ...]


class BatchGenerator:
    """Runs requests through a model.

    Args:
        runner: the model with its rows.
        decode: ids to text, for stop strings.
        max_prefill_tokens: padded prompt tokens read at once, where prompts are padded.
        clock: seconds.
    """

    def __init__(
        self,
        runner: BatchRunner,
        decode: Callable[[Sequence[int]], str],
        *,
        max_prefill_tokens: int = 4096,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._runner, self._decode, self._clock = runner, decode, clock
        self._max_prefill_tokens = max_prefill_tokens
        self._rows: list[_Sequence | None] = [None] * runner.model.num_slots
        self._new: set[int] = set()  # rows whose first token is still to be read
        self._flying: deque[_Launched] = deque()
        self._num_tokens = 0

    def run(self, requests: Sequence[Request], talk: Talk) -> Iterator[Completion]:
        """Answers in the order in which their ends are noticed."""
        waiting, started = deque(requests), self._clock()
        self._num_tokens = 0
        with talk.progress("generate", len(requests), "prompts") as progress:
            while waiting or self._flying or self._num_active:
                self._join(waiting)
                if not waiting:
                    self._close_ranks()
                if self._num_active:
                    self._launch()
                if len(self._flying) > self._runner.pace.lookahead or not self._num_active:
                    yield from self._read(progress)
                    seconds = self._clock() - started
                    speed = self._num_tokens / seconds if seconds else 0
                    progress.say(f"{speed:.0f} tokens/s, {self._num_active} at a time")

    @property
    def _num_active(self) -> int:
        return sum(sequence is not None for sequence in self._rows)

    def _join(self, waiting: deque[Request]) -> None:
        """Fill free rows; a few at a time, since each prompt that is read stops all running sequences."""
        free = [row for row, sequence in enumerate(self._rows) if sequence is None]
        if not waiting or (len(free) < len(self._rows) and len(free) < max(1, len(self._rows) // 16)):
            return
        joining = [waiting.popleft() for _ in range(min(len(free), len(waiting)))]
        if not self._runner.pads_prompts:
            self._prefill(joining, free[: len(joining)])
            return
        joining.sort(key=lambda request: len(request.prompt_ids))  # little padding
        while joining:
            longest, num = 0, 0
            for request in joining:
                longest = max(longest, len(request.prompt_ids))
                if num and longest * (num + 1) > self._max_prefill_tokens:
                    break
                num += 1
            self._prefill(joining[:num], free[:num])
            del joining[:num], free[:num]

    def _prefill(self, requests: Sequence[Request], rows: Sequence[int]) -> None:
        new = [
            NewRow(row=row, length=len(r.prompt_ids), sampling=r.sampling, num_drawn=r.max_new_tokens)
            for row, r in zip(rows, requests, strict=True)
        ]
        self._runner.join(new, [r.prompt_ids for r in requests])
        for row, request in zip(rows, requests, strict=True):
            self._rows[row] = _Sequence(request, row)
        self._new.update(rows)

    def _close_ranks(self) -> None:
        """When no request waits, sequences move to the first rows, so that steps become smaller."""
        used = [row for row, sequence in enumerate(self._rows) if sequence is not None]
        size = self._runner.pace.rows(max(1, len(used)))
        sources = [row for row in used if row >= size]
        if not sources:
            return
        goals = [row for row in range(size) if self._rows[row] is None][: len(sources)]
        moving = [sequence for row in sources if (sequence := self._rows[row]) is not None]
        most = self._runner.most_per_step
        length = max(len(s.request.prompt_ids) + len(s.text.ids) + most * (s.num_flying + 1) for s in moving)
        self._runner.move(sources, goals, length)
        for sequence, source, goal in zip(moving, sources, goals, strict=True):
            self._rows[goal], self._rows[source], sequence.row = sequence, None, goal
            if source in self._new:
                self._new.remove(source)
                self._new.add(goal)

    def _launch(self) -> None:
        """A block of steps; rows whose texts then are as long as they may be become free at once."""
        used = [(row, sequence) for row, sequence in enumerate(self._rows) if sequence is not None]
        missing = [s.request.max_new_tokens - s.num_sure - (row in self._new) for row, s in used]
        steps = min(self._runner.pace.steps, max(missing))
        block = self._runner.launch(used[-1][0] + 1, steps)
        self._flying.append(_Launched(block, steps, tuple((row, s, row in self._new) for row, s in used)))
        full = list[int]()
        for (row, sequence), num_missing in zip(used, missing, strict=True):
            sequence.num_flying += steps + (row in self._new)
            if num_missing <= steps:
                full.append(row)
        self._new.clear()
        self._free(full)

    def _read(self, progress: Progress) -> Iterator[Completion]:
        """Take in the oldest block in flight."""
        launched = self._flying.popleft()
        gained = launched.block.steps()
        ended = list[int]()
        for row, sequence, is_new in launched.rows:
            if sequence.text.finish is not None:
                continue  # it ran on past its end
            sequence.num_flying -= launched.steps + is_new
            self._num_tokens += self._add(sequence.text, gained[row][0 if is_new else 1 :], is_new=is_new)
            if sequence.text.finish is None:
                continue
            if sequence.row is not None:
                ended.append(sequence.row)
            progress.advance()
            yield sequence.text.completion()
        self._free(ended)

    def _add(self, text: SequenceText, steps: Sequence[Sequence[int]], *, is_new: bool) -> int:
        """Book the tokens that a block of steps gained (a text's first token comes from prefill); returns how many."""
        if self._runner.speculation is None:
            return text.add([token for ids in steps for token in ids], self._decode)
        before = len(text.ids)
        for index, ids in enumerate(steps):
            kept = text.add(ids, self._decode)
            if index or not is_new:
                text.accepted.append(min(kept, len(ids) - 1))
            if text.finish is not None:
                break
        return len(text.ids) - before

    def _free(self, rows: Sequence[int]) -> None:
        if rows:
            self._runner.state.leave(rows)
        for row in rows:
            sequence = self._rows[row]
            assert sequence is not None, "only a row in use can be freed"
            self._rows[row], sequence.row = None, None
