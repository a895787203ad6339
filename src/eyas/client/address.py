"""Where a server is and how to ask it: one HTTP client per server, errors in the house's form.

Proxies from the environment are never used for loopback addresses: a proxy that answers for localhost is a known cause
of "warm-up 502" (sglang#16855).
"""

import ipaddress
import json
import ssl
import time
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from eyas.client.server_api import OPENAI, ServerApi
from eyas.errors import ExitCode, EyasError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

MAX_BODY_BYTES = 32 << 20  # a /metrics page of a hundred ranks stays below 5 MB
_MAX_JSON_BYTES = 4 << 20  # as objects they take thirty times that, and no signal is heeded while they are made
_LONGEST_BODY_S = 120.0  # a body that drips is not an answer
UNREADABLE = (
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    RecursionError,
    OverflowError,
)  # what JSON of the wrong shape raises


class ServerUnreachable(EyasError):
    """No process listens there, or the answer did not come in time."""

    code = "server-unreachable"
    exit_code = ExitCode.ENVIRONMENT


class ServerRefused(EyasError):
    """The server answered, but with an error; `status` is that of HTTP, None where the answer itself was no use."""

    code = "server-refused"
    exit_code = ExitCode.ENVIRONMENT
    status: int | None = None


class AnswerEndless(ServerRefused):
    """The server's answer does not end: it is larger, or takes longer, than any that is asked for."""

    code = "answer-endless"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """One server.

    Attributes:
        url: base, without a path: "http://127.0.0.1:8000".
        api: its routes and counters.
        version: the engine's, None if not known (taken as the newest).
        model: name to give in OpenAI routes; None for a server that ignores it.
        max_length: tokens of prompt and answer that it takes; None if it does not say.
        api_key: sent as bearer token, shown nowhere.
    """

    url: str
    api: ServerApi = OPENAI
    version: str | None = None
    model: str | None = None
    max_length: int | None = None
    api_key: str | None = field(default=None, repr=False)

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine."""
        host = ""
        try:
            host = urlsplit(self.url).hostname or ""
            return ipaddress.ip_address(host).is_loopback
        except ValueError:  # a name, or a URL that is none
            return host == "localhost"

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


def open_http(address: ServerAddress, *, timeout_s: float = 60.0) -> "httpx.Client":
    """An HTTP client for one server: `timeout_s` is the longest silence; connecting may take 5 s at most.

    Raises:
        ServerUnreachable: `address.url` is not a URL.
    """
    import httpx

    with translated_errors(address, ""):  # a URL that is none
        return httpx.Client(
            base_url=address.url.rstrip("/"),
            headers={"Accept-Encoding": "identity", **address.headers},  # 13 kB of gzip can hold 4.8 GB
            timeout=httpx.Timeout(timeout_s, connect=min(5.0, timeout_s)),
            trust_env=not address.is_loopback,
            verify=certificates(),
            limits=httpx.Limits(max_connections=None),
        )


@cache
def certificates() -> ssl.SSLContext:
    """What TLS trusts. Reading them takes longer than most answers: once is enough."""
    import httpx

    return httpx.create_ssl_context()


@contextmanager
def translated_errors(address: ServerAddress, route: str) -> "Iterator[None]":
    """Turn httpx's exceptions into ours.

    Raises:
        ServerUnreachable: refused, reset, or silent for too long.
    """
    import httpx

    where = f"{address.url.rstrip('/')}{route}"
    try:
        yield
    except httpx.TimeoutException as error:
        raise ServerUnreachable(
            f"no answer from {route}",
            where,
            f"{type(error).__name__}: nothing came within the time allowed; the engine may be stuck",
            f"see what it is doing: eyas watch {address.url}",
        ) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerUnreachable(
            f"cannot talk to {route}",
            where,
            f"{type(error).__name__}: {error}",
            f"see whether it is up: eyas watch {address.url}",
        ) from error


def await_answer(http: "httpx.Client", address: ServerAddress, timeout_s: float) -> bool:
    """Wait until /health answers anything at all; False if it did not within `timeout_s`."""
    end = time.monotonic() + timeout_s
    while True:
        try:
            get_text(http, address, "/health")
        except ServerUnreachable:
            if time.monotonic() >= end:
                return False
            time.sleep(0.1)
        except ServerRefused:
            return True
        else:
            return True


def get_text(http: "httpx.Client", address: ServerAddress, route: str, *, limit_bytes: int | None = None) -> str | None:
    """Body of a GET; None where the route does not exist (404, 405, 501).

    Raises:
        ServerUnreachable, ServerRefused: see `translated_errors`, `bounded_text`.
    """
    with translated_errors(address, route), http.stream("GET", route) as response:
        if response.status_code in (404, 405, 501):
            return None
        return bounded_text(response, address, route, limit_bytes=limit_bytes)


def post_json(http: "httpx.Client", address: ServerAddress, route: str, body: Mapping[str, Any]) -> Any:
    """The JSON value that a POST gives.

    Raises:
        ServerUnreachable, ServerRefused: see `translated_errors`, `bounded_text`. ValueError: no JSON.
    """
    with translated_errors(address, route), http.stream("POST", route, json=dict(body)) as response:
        return json.loads(bounded_text(response, address, route, limit_bytes=_MAX_JSON_BYTES))


def bounded_text(
    response: "httpx.Response", address: ServerAddress, route: str, *, limit_bytes: int | None = None
) -> str:
    """The body of a streamed answer, up to a limit of size and time: the server may not be an engine at all.

    Raises:
        ServerRefused: an HTTP error (its body is quoted), a redirect, or a body without end.
    """
    where, limit = f"{address.url.rstrip('/')}{route}", limit_bytes or MAX_BODY_BYTES
    require_plain(response, address, route)
    end = time.monotonic() + _LONGEST_BODY_S
    body = bytearray()
    for piece in response.iter_bytes():
        body += piece
        if len(body) > limit or time.monotonic() > end:
            raise AnswerEndless(
                f"the answer of {route} has no end",
                where,
                f"{len(body) >> 20} MiB arrived without an end; at most {limit >> 20} MiB are read, for "
                f"{_LONGEST_BODY_S:.0f} s",
                "give the URL of a serving engine",
            )
    text = body.decode(errors="replace")
    if not response.is_success:
        refused = ServerRefused(
            f"HTTP {response.status_code} from {route}",
            where,
            _short(text) or "no body",
            "see the server's log; the flags and the model's name must fit the request",
        )
        refused.status = response.status_code
        raise refused
    return text


def require_plain(response: "httpx.Response", address: ServerAddress, route: str) -> None:
    """Raise `ServerRefused` for a compressed answer: it was not asked for, and what it holds has no bound."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ServerRefused(
            f"the answer of {route} is compressed",
            f"{address.url.rstrip('/')}{route}",
            f"Content-Encoding: {encoding[:40]}, though only plain answers are asked for",
            "ask the server itself, not a proxy that compresses",
        )


def get_json(http: "httpx.Client", address: ServerAddress, route: str) -> Mapping[str, Any] | None:
    """JSON object of a GET; None where the route does not exist or gives something else."""
    text = get_text(http, address, route, limit_bytes=_MAX_JSON_BYTES)
    try:
        value = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _short(text: str, limit: int = 400) -> str:
    text = text.strip()
    return text if len(text) <= limit else f"{text[:limit]} …"
