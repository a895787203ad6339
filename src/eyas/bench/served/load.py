"""Conversations held with one server, so many at once: each answer with its times, and how well the client kept up."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from eyas.bench.served.questions import Question
from eyas.client.address import ServerAddress, ServerRefused, ServerUnreachable
from eyas.client.server_api import GenerationOptions, Prompt, ServerAnswer
from eyas.client.streams import Arrived, StreamConnection
from eyas.client.tokens import ids_of_messages

if TYPE_CHECKING:
    import httpx

_PROBE_S = 0.01
_MOST_KEPT_BYTES = 256 << 20
MOST_BUSY = 0.85  # of one processor: beyond it arrivals wait for the client
MOST_LATE_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One answer of one question.

    Attributes:
        id, set, turn: of the question; the first turn is 0.
        answer: as the server gave it.
    """

    id: str
    set: str
    turn: int
    answer: ServerAnswer

    @property
    def num_tokens(self) -> int:
        """New tokens: as the server counts them, else its ids, else what came."""
        answer = self.answer
        return answer.num_output_tokens or len(answer.output_ids or ()) or sum(answer.chunk_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLoad:
    """How the client kept up.

    Attributes:
        busy: its share of one processor's time.
        late_s: by how much its timers came late, 99th percentile: an arrival may be noted so much late.
    """

    busy: float
    late_s: float

    @property
    def is_bottleneck(self) -> bool:
        """Whether what was measured is the client."""
        return self.busy > MOST_BUSY or self.late_s > MOST_LATE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTurn:
    """All questions answered once by one server.

    Attributes:
        seconds: from the first request to the end of the last answer.
        asked: in the order of questions and turns.
        client: how it kept up.
    """

    seconds: float
    asked: tuple[Asked, ...]
    client: ClientLoad


@dataclass(slots=True)
class Arm:
    """One server of a comparison.

    Attributes:
        name: "plain", "speculative" or, alone, "server".
        address: where it is.
    """

    name: str
    address: ServerAddress
    ids: dict[str, list[int]] = field(default_factory=dict)

    def tokenise(self, http: "httpx.Client", questions: Sequence[Question]) -> None:
        """Turn messages into token ids by the server's own chat template, if it does that: answers to ids tell most."""
        routes = self.address.api.tokens
        if routes is None or not routes.takes_messages(self.address.version):
            return
        try:
            for question in questions:
                if question.begin and not question.turns:
                    self.ids[question.id] = ids_of_messages(http, self.address, question.begin)
        except (ServerRefused, ServerUnreachable):
            self.ids.clear()

    def prompt(self, question: Question, answers: Sequence[str]) -> Prompt:
        """What is sent to this server."""
        return self.ids.get(question.id) or question.prompt(answers)


def hold(
    arm: Arm, questions: Sequence[Question], options: GenerationOptions, concurrency: int, max_seconds: float
) -> ServedTurn:
    """Hold every conversation once, `concurrency` at a time; a turn waits for the answer before it.

    Raises:
        ServerUnreachable, ServerRefused: of the first request that fails; the others are given up.
    """
    return asyncio.run(_hold(arm, questions, options, concurrency, max_seconds))


async def _hold(
    arm: Arm, questions: Sequence[Question], options: GenerationOptions, concurrency: int, max_seconds: float
) -> ServedTurn:
    rest = iter(questions)
    numbers = count()
    came: list[tuple[int, Question, int, Arrived | ServerAnswer]] = []
    kept = 0

    async def worker() -> None:
        nonlocal kept
        connection = StreamConnection(arm.address)
        try:
            for question in rest:  # one iterator for all workers: each takes the next
                number = next(numbers)
                answers: list[str] = []
                for turn in range(max(1, len(question.turns))):
                    prompt = arm.prompt(question, answers)
                    arrived = await connection.ask(prompt, options, max_seconds=max_seconds)
                    # Reading costs milliseconds: it waits for the end where no later turn needs the text, and where
                    # what waits is not too much (an event may hold all ids so far).
                    if turn + 1 >= len(question.turns) and kept + arrived.num_bytes < _MOST_KEPT_BYTES:
                        kept += arrived.num_bytes
                        came.append((number, question, turn, arrived))
                    else:
                        answer = arrived.answer(arm.address)
                        answers.append(answer.text)
                        came.append((number, question, turn, answer))
        finally:
            connection.close()

    late: list[float] = []
    probe = asyncio.create_task(_probe(late))
    start, busy = time.perf_counter(), time.process_time()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(questions))):
                group.create_task(worker())
    except BaseExceptionGroup as failures:
        raise _first(failures) from failures
    finally:
        probe.cancel()
    seconds = time.perf_counter() - start
    client = ClientLoad(busy=(time.process_time() - busy) / seconds, late_s=_percentile(late, 0.99))
    came.sort(key=lambda entry: (entry[0], entry[2]))
    asked = tuple(
        Asked(
            id=question.id,
            set=question.set,
            turn=turn,
            answer=found if isinstance(found, ServerAnswer) else found.answer(arm.address),
        )
        for _, question, turn, found in came
    )
    return ServedTurn(seconds=seconds, asked=asked, client=client)


async def _probe(late: list[float]) -> None:
    """Note by how much a timer comes late, again and again."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _PROBE_S
        await asyncio.sleep(_PROBE_S)
        late.append(loop.time() - due)


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0
