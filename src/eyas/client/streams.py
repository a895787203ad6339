"""Many streamed answers at once, over sockets of our own: bytes and times are kept, and read when a stream is over.

A general HTTP client costs some hundred microseconds an event; at 20 000 tokens a second that is more than a core, and
what is measured is the client. Here an event costs what the system call costs. No proxy is used.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from eyas.client.address import UNREADABLE, ServerAddress, ServerRefused, ServerUnreachable, certificates
from eyas.client.generate import endless, events, request_of, require_no_error, unreadable
from eyas.client.server_api import AnswerStream, GenerationOptions, Prompt, ServerAnswer

_MAX_HEAD_BYTES, _MAX_STREAM_BYTES = 64 << 10, 256 << 20
_CONNECT_S = 5.0


@dataclass(slots=True)
class Arrived:
    """One answer as it came.

    Attributes:
        route: of the request. stream: what reads its events.
        sent_at, ended_at: seconds of the clock. pieces: (seconds, bytes of the body), in order.
    """

    route: str
    stream: AnswerStream
    sent_at: float = 0.0
    ended_at: float = 0.0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """Of its body."""
        return sum(len(piece) for _, piece in self.pieces)

    def answer(self, address: ServerAddress) -> ServerAnswer:
        """Read it; an event has the time at which its line was complete.

        Raises:
            ServerRefused: an error object, or something that is not an answer.
        """
        try:
            rest = b""
            for at, piece in self.pieces:
                *lines, rest = (rest + piece).split(b"\n")
                for event in events(line.decode(errors="replace") for line in lines):
                    require_no_error(event, address, self.route)
                    self.stream.take(event, at - self.sent_at)
            return self.stream.result(self.ended_at - self.sent_at)
        except UNREADABLE as error:
            raise unreadable(address, self.route, error) from error


class StreamConnection(asyncio.Protocol):
    """One connection, kept for one request after another."""

    def __init__(self, address: ServerAddress, clock: Callable[[], float] = time.perf_counter) -> None:
        self._address, self._clock = address, clock
        self._parts = urlsplit(address.url)
        self._transport: asyncio.Transport | None = None
        self._arrived: Arrived | None = None
        self._done: asyncio.Future[None] | None = None
        self._buffer = bytearray()
        self._reads_head, self._is_chunked, self._left, self._status = True, False, -1, 0
        self._num_bytes, self._closes = 0, False

    async def ask(self, prompt: Prompt, options: GenerationOptions, *, max_seconds: float) -> Arrived:
        """Generate once, streamed.

        Raises:
            ServerUnreachable: no connection, one that broke, or no end within `max_seconds`.
            ServerRefused: an HTTP error. AnswerEndless: too large.
        """
        route, body, stream = request_of(self._address, prompt, options)
        self._arrived = Arrived(route, stream)
        await self._connect()
        assert self._transport is not None, "connected"
        self._reads_head, self._is_chunked, self._left = True, False, -1
        self._num_bytes, self._closes = 0, False
        self._buffer.clear()
        self._done = asyncio.get_running_loop().create_future()
        message = self._message(route, body)
        self._arrived.sent_at = self._clock()
        self._transport.write(message)
        try:
            await asyncio.wait_for(self._done, max_seconds)
        except TimeoutError:
            self.close()
            raise self._broken(f"it had not ended after {max_seconds:.0f} s") from None
        if self._closes:
            self.close()
        if self._status != 200:
            raise self._refused(self._arrived)
        return self._arrived

    def close(self) -> None:
        """Let the connection go."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    async def _connect(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            return
        is_tls = self._parts.scheme == "https"
        host, port = self._parts.hostname or "", self._parts.port or (443 if is_tls else 80)
        context = certificates() if is_tls else None
        try:
            opened = asyncio.get_running_loop().create_connection(lambda: self, host, port, ssl=context)
            await asyncio.wait_for(opened, _CONNECT_S)
        except (OSError, TimeoutError) as error:
            raise self._broken(f"{type(error).__name__}: {error}") from error

    def _message(self, route: str, body: Mapping[str, Any]) -> bytes:
        data = json.dumps(body).encode()
        head = {
            "Host": self._parts.netloc.rpartition("@")[2],
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            "Content-Length": str(len(data)),
            **self._address.headers,
        }
        lines = [f"POST {self._parts.path.rstrip('/')}{route} HTTP/1.1", *(f"{k}: {v}" for k, v in head.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + data

    # ------------------------------------------------------------------ asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it."""
        assert isinstance(transport, asyncio.Transport), "a stream"
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Keep what came, with its time."""
        at = self._clock()
        if self._arrived is None or self._done is None or self._done.done():
            return
        self._num_bytes += len(data)
        if self._num_bytes > _MAX_STREAM_BYTES:
            self._fail(endless(self._address, self._arrived.route, f"{self._num_bytes} bytes arrived without an end"))
            return
        if self._reads_head:
            self._buffer += data
            head, found, rest = bytes(self._buffer).partition(b"\r\n\r\n")
            if not found:
                if len(head) > _MAX_HEAD_BYTES:
                    self._fail(endless(self._address, self._arrived.route, "its headers do not end"))
                return
            self._buffer.clear()
            self._reads_head = False
            if not self._read_head(head.decode("latin-1")):
                return
            data = rest
        self._read_body(data, at)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of a body without a length, or a break."""
        self._transport = None
        if self._done is None or self._done.done():
            return
        if not self._reads_head and not self._is_chunked and self._left < 0:
            self._finish()
        else:
            self._fail(self._broken(f"the connection was closed within an answer ({exc or 'no reason given'})"))

    def _read_head(self, head: str) -> bool:
        """Take status and headers in; whether a body can be read."""
        assert self._arrived is not None, "asked"
        first, *lines = head.split("\r\n")
        words = first.split(" ", 2)
        self._status = int(words[1]) if len(words) > 1 and words[1].isascii() and words[1].isdigit() else 0
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._is_chunked = "chunked" in fields.get("transfer-encoding", "").lower()
        length = fields.get("content-length", "")
        self._left = int(length) if length.isascii() and length.isdigit() and len(length) < 16 else -1
        self._closes = fields.get("connection", "").lower() == "close" or words[0] == "HTTP/1.0"
        if fields.get("content-encoding", "identity").lower() not in ("", "identity"):
            why = f"Content-Encoding: {fields['content-encoding'][:40]}, though only plain answers are asked for"
            what, do = f"the answer of {self._arrived.route} is compressed", "ask the server itself, not a proxy"
            self._fail(ServerRefused(what, self._address.url, why, do))
            return False
        return True

    def _read_body(self, data: bytes, at: float) -> None:
        assert self._arrived is not None, "asked"
        if not self._is_chunked:
            if data:
                self._arrived.pieces.append((at, data))
            if self._left >= 0:
                self._left -= len(data)
                if self._left <= 0:
                    self._finish()
            return
        self._buffer += data
        begin = 0
        while (end := self._buffer.find(b"\r\n", begin)) >= 0:
            try:
                size = int(self._buffer[begin:end].partition(b";")[0], 16)
            except ValueError:
                self._fail(self._broken("its body is not in chunks, as its headers say"))
                return
            if len(self._buffer) < end + 2 + size + 2:
                break
            if size == 0:
                self._finish()
                return
            self._arrived.pieces.append((at, bytes(self._buffer[end + 2 : end + 2 + size])))
            begin = end + 2 + size + 2
        del self._buffer[:begin]

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            assert self._arrived is not None, "asked"
            self._arrived.ended_at = self._clock()
            self._done.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
        self.close()

    def _broken(self, why: str) -> ServerUnreachable:
        route = self._arrived.route if self._arrived is not None else ""
        where, do = f"{self._address.url}{route}", f"see what it is doing: eyas watch {self._address.url}"
        return ServerUnreachable("the answer broke off, or none came", where, why[:400], do)

    def _refused(self, arrived: Arrived) -> ServerRefused:
        text = b"".join(piece for _, piece in arrived.pieces[:8]).decode(errors="replace")[:400]
        refused = ServerRefused(
            f"HTTP {self._status} from {arrived.route}",
            f"{self._address.url}{arrived.route}",
            text.strip() or "no body",
            "see the server's log; the flags and the model's name must fit the request",
        )
        refused.status = self._status
        return refused
