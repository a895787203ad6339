"""States from serving engines that `eyas serve --capture` started: `--from sglang://HOST:PORT`, `vllm://HOST:PORT,...`.

A row is asked for over HTTP as token ids with one new token; the engine puts its states into a folder on this machine,
where they are fetched. Several servers share the rows; one that dies leaves its rows to the others.
"""

import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from eyas.client.address import UNREADABLE, ServerAddress, ServerRefused, ServerUnreachable, open_http, post_json
from eyas.contract.engines.capturing import spool_folders
from eyas.contract.engines.registry import engine_named
from eyas.contract.engines.server_at import server_at
from eyas.contract.engines.serving_engine import ServingEngine
from eyas.contract.engines.version import at_least
from eyas.errors import EyasError
from eyas.extract.source import AskedRow, ExtractedRow, SourceFailed, SourceUnsupported, Wanted
from eyas.extract.spool import Spool, open_spool, take_row
from eyas.store.about import StateDtype
from eyas.store.row import row_key

HANDED_OVER = "h-"  # how names begin of rows that the client fetches itself; all others go into the server's store
_TOKENS_AT_ONCE = 1 << 16  # asked of one server, beyond what it computes in a pass
_REQUESTS_AT_ONCE = 64
_SILENCE_S = 600.0
_ROW_LAG_S = 30.0
_POLL_S = 0.25
_RETRY_S = 1.0
_MOST_TRIES = 3  # of one row that a living server refuses
_READY_ROWS = 16  # that wait for the reader; more stay with the engine


@dataclass(slots=True, kw_only=True)
class _Server:
    address: ServerAddress
    spool: Spool
    down_since: float | None = None


@dataclass(slots=True)
class ServerSource:
    """`ExtractSource` over one or more servers of one engine. Use `open`.

    Attributes:
        patience_s: a server that does not answer is asked again for this long.
        say: told when a server stops answering and when it is back.
    """

    engine: ServingEngine
    wanted: Wanted
    servers: tuple[_Server, ...]
    is_reference: bool = False
    patience_s: float = 120.0
    say: Callable[[str], None] = lambda text: None
    _lost: list[EyasError] = field(default_factory=list)

    @classmethod
    def open(
        cls, url: str, wanted: Wanted, *, api_key: str | None = None, say: Callable[[str], None] = lambda text: None
    ) -> "ServerSource":
        """The servers that `url` names: ENGINE://HOST:PORT[,HOST:PORT ...][?spool=FOLDER].

        Raises:
            EngineUnknown: the scheme is not an engine.
            SourceUnsupported: not such a URL, or a server hands over nothing.
            ServerUnreachable: a server does not answer.
        """
        parts = urlsplit(url)
        engine = engine_named(parts.scheme)
        places = parse_qs(parts.query).get("spool", [])
        servers = [_opened(engine, place, places, api_key) for place in parts.netloc.split(",")]
        return cls(engine, wanted, tuple(servers), say=say)

    @property
    def name(self) -> str:
        """Engine and version."""
        return self.servers[0].spool.source

    @property
    def last(self) -> Literal["post-norm", "pre-norm"]:
        """Of the rows that the servers hand over."""
        return self.servers[0].spool.last

    @property
    def dtype(self) -> StateDtype:
        """In which the servers compute."""
        return self.servers[0].spool.dtype

    def probe(self) -> tuple[str, ...]:
        """Whether every server hands over what is wanted."""
        capturing = self.engine.capturing
        for server in self.servers:
            spool, url = server.spool, server.address.url
            version = spool.source.rpartition("=")[2]
            if capturing is None or not at_least(version, capturing.first):
                first = capturing.first if capturing else "none"
                raise _unsupported(self.name, url, f"the first version that can is {first}", "use that one, or newer")
            if spool.boundaries != self.wanted.boundaries:
                why = f"it captures at {list(spool.boundaries)}, wanted are {list(self.wanted.boundaries)}"
                do = f"start it again with --boundaries {' '.join(map(str, self.wanted.boundaries))}, or ask for those"
                raise _unsupported(spool.source, url, why, do)
            if spool.hidden_size != self.wanted.target.hidden_size:
                why = f"its states are {spool.hidden_size} wide, the target's {self.wanted.target.hidden_size}"
                raise _unsupported(spool.source, url, why, "give the target that the server serves")
            if spool.source != self.name:
                raise _unsupported(spool.source, url, f"another server is {self.name}", "use servers of one version")
        return (
            f"{len(self.servers)} x {self.name}; rows of at most {min(s.spool.longest for s in self.servers)} tokens",
            f"the last state comes {self.last}",
        )

    def states(self, rows: Sequence[AskedRow]) -> Iterator[ExtractedRow]:
        """Each row once, as the servers finish them."""
        longest = min(server.spool.longest for server in self.servers)
        for number, row in enumerate(rows):
            if len(row.token_ids) > longest:
                why = f"row {number} has {len(row.token_ids)} tokens"
                do = f"prepare rows of at most {longest} tokens, or serve with more (--context-length, --spool-gb)"
                raise _unsupported(self.name, f"at most {longest} tokens", why, do)
        work = _Work(rows)
        threads = [t for server in self.servers for t in self._ask_in_background(server, work)]
        try:
            for _ in rows:
                yield self._next(work, threads)
        finally:
            work.is_over.set()

    def greedy(self, rows: Sequence[AskedRow]) -> Sequence[int]:
        """The servers' own greedy tokens."""
        server = self.servers[0]
        with open_http(server.address, timeout_s=_SILENCE_S) as http:
            return [self._ask(http, server, "no-row", row.token_ids) for row in rows]

    def close(self) -> None:
        """Nothing is held between calls."""

    def _next(self, work: "_Work", threads: list[threading.Thread]) -> ExtractedRow:
        while True:
            try:
                found = work.done.get(timeout=_POLL_S)
            except queue.Empty:
                if not any(thread.is_alive() for thread in threads):
                    error = self._lost[-1] if self._lost else None
                    why = f"{error.what}: {error.why}" if error else "all of them ended"
                    raise _failed(self.name, self.servers[0].address.url, why) from error
                continue
            if isinstance(found, EyasError):
                raise found
            return found

    def _ask_in_background(self, server: _Server, work: "_Work") -> list[threading.Thread]:
        budget = min(_TOKENS_AT_ONCE, server.spool.limit_bytes // 2 // server.spool.token_bytes)
        share = _Share(budget)
        http = open_http(server.address, timeout_s=_SILENCE_S)
        threads = [
            threading.Thread(target=self._serve, args=(server, http, work, share), daemon=True, name="eyas-ask")
            for _ in range(min(_REQUESTS_AT_ONCE, len(work.rows)))
        ]
        for thread in threads:
            thread.start()
        return threads

    def _serve(self, server: _Server, http: Any, work: "_Work", share: "_Share") -> None:
        """Ask one server for rows until the call is over or the server is given up; its rows go back to the others."""
        while not work.is_over.is_set():
            try:
                number = work.waiting.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            row = work.rows[number]
            share.take(len(row.token_ids))
            try:
                work.give(self._row(http, server, work, number))
                self._is_back(server)
            except ServerUnreachable as error:
                work.waiting.put(number)
                if not self._may_retry(server, error, work):
                    return
            except ServerRefused as error:
                work.tries[number] += 1
                if work.tries[number] < _MOST_TRIES:
                    work.waiting.put(number)
                else:
                    work.give(error)
            except EyasError as error:
                work.give(error)
            finally:
                share.give(len(row.token_ids))

    def _row(self, http: Any, server: _Server, work: "_Work", number: int) -> ExtractedRow:
        row = work.rows[number]
        name = f"{HANDED_OVER}{row_key(row.token_ids)[:16]}-{uuid.uuid4().hex[:12]}"
        self._ask(http, server, f"eyas.{name}.{len(row.token_ids)}", row.token_ids)
        states = take_row(server.spool, name, row.token_ids, _ROW_LAG_S, work.is_over.is_set)
        return ExtractedRow(number=number, states=states[row.first :], first=row.first)

    def _may_retry(self, server: _Server, error: EyasError, work: "_Work") -> bool:
        """Wait a little after `server` did not answer; False when it has not for too long."""
        self._lost.append(error)
        now = time.monotonic()
        if server.down_since is None:
            server.down_since = now
            self.say(f"{server.address.url} does not answer ({error.why}); asked again for {self.patience_s:.0f} s")
        return now - server.down_since < self.patience_s and not work.is_over.wait(_RETRY_S)

    def _is_back(self, server: _Server) -> None:
        if server.down_since is not None:
            server.down_since = None
            self.say(f"{server.address.url} answers again")

    def _ask(self, http: Any, server: _Server, row_id: str, token_ids: tuple[int, ...]) -> int:
        capturing = self.engine.capturing
        assert capturing is not None, "probed"
        request = capturing.row_request(row_id, token_ids, server.address.model or "default")
        answer = post_json(http, server.address, request.route, request.body)
        try:
            return capturing.greedy_token(answer)
        except (*UNREADABLE, IndexError) as error:
            where = f"{server.address.url}{request.route}"
            raise _failed(self.name, where, f"no token in its answer ({type(error).__name__})") from error


class _Work:
    """The rows of one call: numbers that wait, and what came of them. `done` is short: a slow reader holds servers."""

    def __init__(self, rows: Sequence[AskedRow]) -> None:
        self.rows = rows
        self.waiting: queue.Queue[int] = queue.Queue()
        # longest first, so that the end is not one long row
        for number in sorted(range(len(rows)), key=lambda n: -len(rows[n].token_ids)):
            self.waiting.put(number)
        self.tries = [0] * len(rows)
        self.done: queue.Queue[ExtractedRow | EyasError] = queue.Queue(_READY_ROWS)
        self.is_over = threading.Event()

    def give(self, found: ExtractedRow | EyasError) -> None:
        """Hand a result to the reader, who may be slow, or gone."""
        while not self.is_over.is_set():
            try:
                self.done.put(found, timeout=_POLL_S)
                return
            except queue.Full:
                pass


class _Share:
    """Tokens that may be under way at one server."""

    def __init__(self, num_tokens: int) -> None:
        self._free, self._most, self._changed = num_tokens, num_tokens, threading.Condition()

    def take(self, num_tokens: int) -> None:
        wanted = min(num_tokens, self._most)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= wanted)
            self._free -= wanted

    def give(self, num_tokens: int) -> None:
        with self._changed:
            self._free += min(num_tokens, self._most)
            self._changed.notify_all()


def _opened(engine: ServingEngine, place: str, spools: Sequence[str], api_key: str | None) -> _Server:
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit():
        do = f"write {engine.name}://HOST:PORT, several with commas"
        raise _unsupported(engine.name, place, "it is not HOST:PORT", do)
    folders = [Path(name) for name in spools] or [f for f in spool_folders(int(port)) if f.exists()]
    spool = open_spool(folders[0] if folders else spool_folders(int(port))[0])
    return _Server(address=server_at(f"http://{place}", api_key), spool=spool)


def _unsupported(name: str, where: str, why: str, do: str) -> SourceUnsupported:
    return SourceUnsupported(f"{name} does not give these states", where, why, do)


def _failed(name: str, where: str, why: str) -> SourceFailed:
    do = "look at the server (`eyas watch URL`); run the same command again to continue"
    return SourceFailed(f"{name} gives no more states", where, why, do)
