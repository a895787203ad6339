"""A server of raw bytes: whatever a socket can send instead of an answer."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from eyas.client.address import ServerAddress, get_text, open_http


@contextmanager
def answering(respond: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server of raw bytes: `respond` gets each connection after its request was read."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    try:
                        connection.recv(65536)
                        respond(connection)
                    except OSError:
                        continue

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def whole(body: bytes, head: bytes = b"HTTP/1.1 200 OK") -> Callable[[socket.socket], None]:
    return lambda c: c.sendall(head + b"\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def fetch(url: str) -> object:
    address = ServerAddress(url=url)
    with open_http(address, timeout_s=5) as http:
        return get_text(http, address, "/metrics")
