"""Canaries sent and counted: what a server accepted while it answered them, rank by rank.

Counts come with each answer where the server gives them (SGLang; vLLM since 0.32 if asked), else from its lifetime
counters read before and after.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import TYPE_CHECKING

from eyas.client import counters
from eyas.client.address import AnswerEndless, ServerAddress
from eyas.client.generate import generate
from eyas.client.server_api import Counters, GenerationOptions, Prompt, ServerAnswer
from eyas.decode.accept_length import Acceptance
from eyas.errors import EyasError
from eyas.serve.verdict.canary import loops

if TYPE_CHECKING:
    import httpx

_LEAST_S = 10.0  # for answers that are asked for just before the time is up
_SETTLE_S = 3.0  # lifetime counters may come later than the last answer
_SETTLE_STEP_S = 0.1
_SILENT_BATCHES = 2  # a server that has counted nothing after n batches does not speculate


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryOptions:
    """How much to ask.

    Attributes:
        min_rounds: verify passes wanted per rank.
        max_seconds: stop asking after this long, per rank.
        max_new_tokens: length of one answer.
        concurrency: answers at once.
        num_draft_tokens: K.
    """

    min_rounds: int = 200
    max_seconds: float = 120.0
    max_new_tokens: int = 128
    concurrency: int = 4
    num_draft_tokens: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """What one rank did.

    Attributes:
        rank: None when the server has only one (or does not tell).
        acceptance: counts of the answers that did not loop (of all, where the server gives lifetime counters only).
        num_answers, num_looping, num_tokens: answers, those that loop, tokens generated.
        error: the first failed request; None when all were answered.
        source: "answers" or "counters".
    """

    rank: int | None
    acceptance: Acceptance
    num_answers: int
    num_looping: int
    num_tokens: int
    error: EyasError | None = None
    source: str = "answers"
    notes: tuple[str, ...] = field(default=())


def run_canaries(
    http: "httpx.Client",
    address: ServerAddress,
    prompts: tuple[Prompt, ...],
    options: CanaryOptions,
    *,
    rank: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> RankResult:
    """Ask one rank until enough verify passes are counted or the time is up. A failing request ends it, and is kept.

    Raises:
        ServerUnreachable, ServerRefused: the counters cannot be read (a failed generation is in the result instead).
    """
    before = _reading(http, address)
    deadline = clock() + options.max_seconds
    generation = GenerationOptions(max_new_tokens=options.max_new_tokens, depth=options.num_draft_tokens)
    answers: list[ServerAnswer] = []
    error: EyasError | None = None
    source = cycle(prompts)
    with ThreadPoolExecutor(options.concurrency) as pool:
        while error is None and clock() < deadline and _rounds(answers, options) < options.min_rounds:
            batch = [next(source) for _ in range(options.concurrency)]
            timed = replace(generation, max_seconds=max(deadline - clock(), _LEAST_S))
            jobs = [pool.submit(generate, http, address, p, timed, dp_rank=rank) for p in batch]
            for job in jobs:
                try:
                    answers.append(job.result())
                except AnswerEndless as failed:
                    error = error or (None if answers and clock() >= deadline else failed)
                except EyasError as failed:
                    error = error or failed
            if not _has_counts(answers) and error is None:
                seen = _since(before, _reading(http, address), rank)
                counted = seen.rounds if seen is not None else 0
                if counted >= options.min_rounds or (not counted and len(answers) >= _SILENT_BATCHES * len(batch)):
                    break
    return _result(http, address, before, answers, error, rank, options, clock, sleep)


def _result(
    http: "httpx.Client",
    address: ServerAddress,
    before: Counters | None,
    answers: list[ServerAnswer],
    error: EyasError | None,
    rank: int | None,
    options: CanaryOptions,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> RankResult:
    looping = [loops(a.output_ids or a.text.split()) for a in answers]
    notes = tuple(dict.fromkeys(note for a in answers for note in a.counts.notes))
    acceptance = Acceptance.none(options.num_draft_tokens)
    source = "answers"
    if _has_counts(answers):
        # If everything loops there is nothing better to count.
        straight = [a for a, bad in zip(answers, looping, strict=True) if not bad] or answers
        for answer in straight:
            if answer.counts.acceptance is not None:
                acceptance += answer.counts.acceptance
    elif before is not None and before.acceptance and error is None:
        source = "counters"
        acceptance = _settled(http, address, before, rank, clock, sleep) or acceptance
    return RankResult(
        rank=rank,
        acceptance=acceptance,
        num_answers=len(answers),
        num_looping=sum(looping),
        num_tokens=sum(a.num_output_tokens or len(a.output_ids or ()) for a in answers),
        error=error,
        source=source,
        notes=notes,
    )


def _reading(http: "httpx.Client", address: ServerAddress) -> Counters | None:
    return counters.read(address, http=http) if address.api.has_lifetime_counts else None


def _since(before: Counters | None, after: Counters | None, rank: int | None) -> Acceptance | None:
    if before is None or after is None:
        return None
    total: Acceptance | None = None
    for name, reading in _of_rank(after.acceptance, rank):
        step = counters.difference(reading, before.acceptance.get(name, Acceptance.none(len(reading.accepted_at))))
        total = step if total is None else total + step
    return total


def _of_rank(acceptance: Mapping[str, Acceptance], rank: int | None) -> Iterator[tuple[str, Acceptance]]:
    yield from ((name, a) for name, a in acceptance.items() if rank is None or name == str(rank))


def _settled(
    http: "httpx.Client",
    address: ServerAddress,
    before: Counters,
    rank: int | None,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Acceptance | None:
    deadline = clock() + _SETTLE_S
    last = _since(before, _reading(http, address), rank)
    while clock() < deadline:
        sleep(_SETTLE_STEP_S)
        now = _since(before, _reading(http, address), rank)
        if now == last:
            return now
        last = now
    return last


def _has_counts(answers: list[ServerAnswer]) -> bool:
    return any(a.counts.acceptance is not None for a in answers)


def _rounds(answers: list[ServerAnswer], options: CanaryOptions) -> int:
    return sum(a.counts.acceptance.rounds for a in answers if a.counts.acceptance is not None)
