"""Many requests over several servers: each takes the next one when it is free, and a dead server's work goes to others.

Knows nothing of what is asked. A request is asked again, elsewhere where that is possible, until a server answers it;
one that a server refuses for its own fault (HTTP 4xx) is handed back as `Refused`.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

from eyas.client.address import ServerAddress, ServerRefused, ServerUnreachable, open_http
from eyas.errors import ExitCode, EyasError
from eyas.talk import Talk, counted, printable

if TYPE_CHECKING:
    import httpx

Item = TypeVar("Item")
Answer = TypeVar("Answer")
# Errors of HTTP that say nothing of the request: key, route, time, load.
_NOT_OF_THE_REQUEST = (401, 403, 404, 408, 425, 429)


class ServersGone(EyasError):
    """No server has answered for too long."""

    code = "servers-gone"
    exit_code = ExitCode.ENVIRONMENT


class AnswersMissing(EyasError):
    """Requests that no server answered, each asked several times."""

    code = "answers-missing"
    exit_code = ExitCode.ENVIRONMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """When to give up.

    Attributes:
        attempts: times that a request is asked before it counts as missing.
        gone_s: seconds without any server before the run ends.
        first_pause_s, longest_pause_s: between two looks at a server that does not answer; doubled each time.
    """

    attempts: int = 5
    gone_s: float = 600.0
    first_pause_s: float = 1.0
    longest_pause_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that a server will not answer: `why`, in its words."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Servers of one and the same model.

    Attributes:
        addresses: at least one.
        away: URLs of those that did not answer at the start.
        is_itself: raises an `EyasError` unless the server at an address is the one that it was.
        concurrency: requests at a time, for each server.
        timeout_s: longest wait for one answer.
    """

    addresses: tuple[ServerAddress, ...]
    is_itself: Callable[[ServerAddress], None]
    away: frozenset[str] = frozenset()
    concurrency: int = 64
    timeout_s: float = 900.0
    patience: Patience = field(default_factory=Patience)

    def ask_all(
        self, items: Sequence[Item], ask: "Callable[[httpx.Client, ServerAddress, Item], Answer]", talk: Talk
    ) -> "Iterator[tuple[Item, Answer | Refused]]":
        """Each item with its answer, as they come.

        Args:
            ask: runs in threads. `ServerUnreachable` and `ServerRefused` are faults to be survived; what else it raises
                ends the run.
            talk: told of servers that go and come.

        Raises:
            ServersGone, AnswersMissing; all other items have been answered before the latter.
        """
        if not items:
            return
        run = _Run(self, items, ask)
        try:
            run.start()
            yield from run.answers(talk)
        finally:
            run.stop()


@dataclass(slots=True)
class _Job(Generic[Item]):
    item: Item
    num_faults: int = 0


@dataclass(slots=True)
class _Server:
    """One server while a run lasts; changed under the run's lock."""

    address: ServerAddress
    http: "httpx.Client"
    is_away: bool = False
    faults_in_a_row: int = 0


@dataclass(frozen=True, slots=True)
class _Failed:
    error: BaseException
    is_fatal: bool


class _Run(Generic[Item, Answer]):
    """One call of `ask_all`."""

    def __init__(
        self,
        servers: Servers,
        items: Sequence[Item],
        ask: "Callable[[httpx.Client, ServerAddress, Item], Answer]",
    ) -> None:
        self._of, self._ask, self._patience = servers, ask, servers.patience
        self._waiting = deque(_Job(item) for item in items)
        self._num_items = self._num_open = len(items)
        self._change, self._stopped = threading.Condition(), threading.Event()
        self._results: SimpleQueue[tuple[Item, Answer | Refused] | _Failed | str] = SimpleQueue()
        self._clients = ExitStack()
        self._servers = [
            _Server(a, self._clients.enter_context(open_http(a, timeout_s=servers.timeout_s)))
            for a in servers.addresses
        ]

    def start(self) -> None:
        """Daemon threads: an answer that is waited for must not hold up the end of the process."""
        for server in self._servers:
            for _ in range(min(self._of.concurrency, self._num_items)):
                threading.Thread(target=self._work, args=(server,), daemon=True).start()
            if server.address.url in self._of.away:
                self._send_away(server, "it did not answer at the start")

    def stop(self) -> None:
        """Let the threads end. Closing the clients makes servers drop what is still being written."""
        self._stopped.set()
        with self._change:
            self._change.notify_all()
        self._clients.close()

    def answers(self, talk: Talk) -> "Iterator[tuple[Item, Answer | Refused]]":
        """Results as they come, in the caller's thread."""
        missing, gone_since = list[BaseException](), None
        while self._num_open:
            try:
                result = self._results.get(timeout=0.2)
            except Empty:
                now = time.monotonic()
                gone_since = (gone_since or now) if all(s.is_away for s in self._servers) else None
                if gone_since is not None and now - gone_since > self._patience.gone_s:
                    raise self._gone(missing) from None
                continue
            if isinstance(result, str):
                talk.line(result)
                continue
            if isinstance(result, _Failed) and result.is_fatal:
                raise result.error
            self._num_open -= 1
            if isinstance(result, _Failed):
                missing.append(result.error)
            else:
                yield result
        if missing:
            raise self._missing(missing)

    def _work(self, server: _Server) -> None:
        while (job := self._take(server)) is not None:
            try:
                answer = self._ask(server.http, server.address, job.item)
            except (ServerUnreachable, ServerRefused) as error:
                self._survive(job, server, error)
            except BaseException as error:  # noqa: BLE001 - of a thread: raised again in the caller's
                self._results.put(_Failed(error, is_fatal=True))
                return
            else:
                server.faults_in_a_row = 0
                self._results.put((job.item, answer))

    def _take(self, server: _Server) -> _Job[Item] | None:
        """The next request for this server, waited for; None when there will be none."""
        with self._change:
            while self._num_open and not self._stopped.is_set():
                if self._waiting and not server.is_away:
                    return self._waiting.popleft()
                self._change.wait(1.0)
        return None

    def _survive(self, job: _Job[Item], server: _Server, error: EyasError) -> None:
        status = error.status if isinstance(error, ServerRefused) else None
        if status is not None and 400 <= status < 500 and status not in _NOT_OF_THE_REQUEST:
            self._results.put((job.item, Refused(f"{error.what}: {error.why}"[:200])))
            return
        job.num_faults += 1
        if job.num_faults >= self._patience.attempts:
            self._results.put(_Failed(error, is_fatal=False))
        with self._change:
            server.faults_in_a_row += 1
            if job.num_faults < self._patience.attempts:
                self._waiting.append(job)
            is_ill = isinstance(error, ServerUnreachable) or server.faults_in_a_row > self._of.concurrency
            is_ill = is_ill and not server.is_away
            self._change.notify_all()
        if is_ill:
            self._send_away(server, error.why)
        elif not isinstance(error, ServerUnreachable):
            self._stopped.wait(min(self._patience.first_pause_s, 0.1 * 2**job.num_faults))

    def _send_away(self, server: _Server, why: str) -> None:
        with self._change:
            if server.is_away:
                return
            server.is_away, server.faults_in_a_row = True, 0
        threading.Thread(target=self._await_return, args=(server, why), daemon=True).start()

    def _await_return(self, server: _Server, why: str) -> None:
        """Look at a server until it answers as itself. An idle connection that it closed is not worth a word."""
        pause, url = self._patience.first_pause_s, printable(server.address.url)
        while not self._stopped.is_set():
            try:
                self._of.is_itself(server.address)
            except EyasError as error:
                if pause == self._patience.first_pause_s:
                    others = "; its requests go to the others" if len(self._servers) > 1 else ""
                    self._results.put(f"{url} does not answer{others}: {printable(error.why or why)}")
                self._stopped.wait(pause)
                pause = min(2 * pause, self._patience.longest_pause_s)
                continue
            if pause > self._patience.first_pause_s:
                self._results.put(f"{url} answers again")
            with self._change:
                server.is_away = False
                self._change.notify_all()
            return

    def _gone(self, missing: Sequence[BaseException]) -> ServersGone:
        urls = ", ".join(server.address.url for server in self._servers)
        last = f"; the last fault: {missing[-1]}" if missing else ""
        return ServersGone(
            "no server answers any more",
            urls,
            f"none of them for {self._patience.gone_s:.0f} s; {self._num_open} of {self._num_items} requests are"
            f" open{last}",
            "start the servers again, then run the same command: it resumes with what is open",
        )

    def _missing(self, missing: Sequence[BaseException]) -> AnswersMissing:
        first = missing[0]
        told = f"{first.what}: {first.why}" if isinstance(first, EyasError) else str(first)
        return AnswersMissing(
            f"{counted(len(missing), 'request')} of {self._num_items} had no answer",
            ", ".join(server.address.url for server in self._servers),
            f"each was asked {self._patience.attempts} times; the first one: {told}",
            "see the servers' logs, then run the same command: it asks again only what is open",
        )
