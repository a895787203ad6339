"""What a server's port and endpoints answer, asked in the background: a `/health` that blocks must not stop us.

SGLang's `/health` waits for a sign of life and may take 1 to 20 s; vLLM's answers at once. Only reading requests are
made: no generation, no change.
"""

import math
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from eyas.client.address import ServerAddress, get_json, open_http
from eyas.client.server_api import Counters
from eyas.contract.engines.registry import ENGINES, engine_of_owner, server_api
from eyas.errors import EyasError
from eyas.serve.facts.containment import told
from eyas.serve.facts.evidence import WITHOUT_HEALTH, CounterFacts, EndpointAnswer, Identity, Port
from eyas.serve.facts.state import Engine

# SGLang gives up on its own probe after SGLANG_HEALTH_CHECK_TIMEOUT (20 s) and answers 503: wait a little longer.
_LONGEST_S = 26.0
_PORT_S = 1.0
_KNOWN_S = 30.0  # another server may take the port over
_MOST_RANKS = 1024
_MOST = 1e18  # no counter of a server gets there

Told = TypeVar("Told")


class BackgroundQuestion(Generic[Told]):
    """Asks again and again in its own thread; `latest` is the newest answer, `pending_s` how long one is awaited."""

    def __init__(self, ask: Callable[[], Told], every_s: float) -> None:
        self._ask, self.every_s = ask, every_s
        self._latest: Told | None = None
        self._asked_at: float | None = None
        self._answered_at = -1e9
        self._thread: threading.Thread | None = None
        self.failed = ""  # why the last question could not even be asked

    def poll(self, wait_s: float = 0.0) -> Told | None:
        """Start a question if one is due; the newest answer, None before the first (for which `wait_s` is waited)."""
        now = time.monotonic()
        if (self._thread is None or not self._thread.is_alive()) and now - self._answered_at >= self.every_s:
            self._asked_at = now
            self._thread = threading.Thread(target=self._run, daemon=True, name="eyas-question")
            self._thread.start()
            if wait_s and self._latest is None:
                self._thread.join(wait_s)
        return self._latest

    @property
    def pending_s(self) -> float:
        """Seconds since the question that has no answer yet; 0 if none is open."""
        asked_at = self._asked_at  # the other thread may clear it meanwhile
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    def _run(self) -> None:
        try:
            self._latest, self.failed = self._ask(), ""
        except Exception as error:  # noqa: BLE001 - a thread must not print its traceback, nor end for good
            self.failed = f"a request to the server failed ({told(error)}); eyas sends it again"
        finally:
            self._answered_at, self._asked_at = time.monotonic(), None


class KeyUnsendable(EyasError):
    """The API key holds characters that an HTTP header cannot carry."""

    code = "api-key-unsendable"


def require_sendable(api_key: str | None, where: str) -> None:
    """Raise `KeyUnsendable` for a key that would fail at every question, which looks like a server that starts."""
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise KeyUnsendable(
            "the API key cannot be sent",
            where,
            "it holds characters other than printable ASCII, which an HTTP header cannot carry",
            f"check the value of {where}: quotes, a newline or a letter of another alphabet may have slipped in",
        )


class Endpoints:
    """One server's port, `/health` and counters, polled in the background."""

    def __init__(self, url: str, engine: Engine, version: str | None, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._address = ServerAddress(url=self.url, api_key=api_key)
        self._engine, self._version, self._api_key = engine, version, api_key
        self._health = BackgroundQuestion(lambda: self.ask("/health", _LONGEST_S), 1.0)
        self._models = BackgroundQuestion(lambda: self.ask("/v1/models", _LONGEST_S), 2.0)
        self._counters = BackgroundQuestion(self._read_counters, 2.0)
        self._identity = BackgroundQuestion(self.identify, 5.0)
        self._counter_notes: tuple[str, ...] = ()

    @property
    def questions(self) -> tuple[BackgroundQuestion[Any], ...]:
        """Everything that is asked in the background."""
        return (self._health, self._models, self._counters, self._identity)

    @property
    def port_number(self) -> int:
        """The URL's port, or its scheme's."""
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    def port(self) -> Port:
        """Whether the port is listened on, now."""
        try:
            with socket.create_connection((urlsplit(self.url).hostname or "", self.port_number), timeout=_PORT_S):
                return "open"
        except ConnectionRefusedError:
            return "refused"
        except OSError:
            return "unknown"

    def health(self, *, is_ready: bool) -> dict[str, EndpointAnswer]:
        """The newest answer of /health by path. Ready servers are asked less often: each SGLang probe costs a step."""
        self._health.every_s = 5.0 if is_ready else 1.0
        answer = self._health.poll()
        if self._health.pending_s > _LONGEST_S:
            answer = EndpointAnswer(code=0, failure="timeout", elapsed_s=self._health.pending_s)
        if answer is None:
            return {}
        if answer.code in WITHOUT_HEALTH:
            models = self._models.poll()
            return {"/health": answer} | ({} if models is None else {"/v1/models": models})
        return {"/health": answer}

    def counters(self) -> CounterFacts | None:
        """The newest reading of the engine's counters; None where there are none."""
        return self._counters.poll()

    def identity(self) -> Identity | None:
        """Which engine answers, once known; it waits a moment, so that a stranger is not called ready first."""
        found = self._identity.poll(wait_s=_PORT_S)
        if found is not None and found.engine in ENGINES:
            self._identity.every_s = _KNOWN_S
            self._engine, self._version = found.engine, found.version
        return found

    def learn(self, engine: Engine, version: str | None) -> None:
        """The engine was found out elsewhere: its counters can be read from now on."""
        self._engine, self._version = engine, self._version or version

    @property
    def notes(self) -> tuple[str, ...]:
        """What the counters could not tell, and why."""
        return self._counter_notes

    def ask(self, path: str, timeout_s: float) -> EndpointAnswer:
        """GET one path."""
        import httpx

        start = time.monotonic()
        try:
            with open_http(self._address, timeout_s=timeout_s) as http, http.stream("GET", path) as response:
                code = response.status_code  # the body is not asked for: it may be without end
            return EndpointAnswer(code=code, elapsed_s=time.monotonic() - start)
        except httpx.ConnectError as error:
            refused = "refused" in str(error).lower() or "111" in str(error)
            return EndpointAnswer(
                code=0, failure="refused" if refused else "broken", elapsed_s=time.monotonic() - start
            )
        except httpx.TimeoutException:
            return EndpointAnswer(code=0, failure="timeout", elapsed_s=time.monotonic() - start)
        except (httpx.HTTPError, httpx.InvalidURL, OSError):
            return EndpointAnswer(code=0, failure="broken", elapsed_s=time.monotonic() - start)

    def identify(self) -> Identity:
        """Which engine answers, by `/v1/models`' owner and `/version`; "unknown" while nothing answers."""
        models, told = self._json("/v1/models"), self._json("/version")
        rows = (models or {}).get("data")
        first = rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], dict) else {}
        engine, model = engine_of_owner(first.get("owned_by")), str(first.get("id", ""))
        version = str((told or {}).get("version") or "") or None
        if engine is not None:
            return Identity(engine=engine.name, version=version, model=model)
        is_foreign = models is None and told is None
        return Identity(version=version, model=model, is_foreign=is_foreign)

    def _json(self, path: str) -> Mapping[str, Any] | None:
        """The route's JSON object; None if the route is missing or gives something else, {} if it did not answer."""
        try:
            with open_http(self._address, timeout_s=3.0) as http:
                return get_json(http, self._address, path)
        except EyasError:
            return {}

    def _read_counters(self) -> CounterFacts | None:
        from eyas.client import counters

        if self._engine not in ENGINES:
            return None
        try:
            address = replace(self._address, api=server_api(self._engine), version=self._version)
            reading = counters.read(address, timeout_s=4.0, with_server_info=False)
        except EyasError:
            return None
        self._counter_notes = tuple(reading.notes)
        pooled = list(reading.acceptance.values())
        total = sum(pooled[1:], pooled[0]) if pooled else None
        if total is None and reading.generated_tokens is None and not reading.progress_mark:
            return None
        running = None if reading.running is None else reading.running + (reading.waiting or 0)
        accepted_at = () if total is None else tuple(float(n) for n in total.accepted_at)
        return CounterFacts(
            generation_tokens=_finite(reading.generated_tokens),
            running=_finite(running),
            rounds=None if total is None else _finite(total.rounds),
            accepted_at=accepted_at if all(map(math.isfinite, accepted_at)) else (),
            mark=tuple(filter(math.isfinite, reading.progress_mark)),
            rank_lengths=_rank_lengths(reading),
        )


def _rank_lengths(reading: Counters) -> dict[str, float]:
    """Of each rank since its start; as last reported, where it does not count."""
    counted = {rank: counts.accept_length for rank, counts in reading.acceptance.items() if counts.rounds}
    told = counted or dict(reading.recent_lengths or reading.accept_lengths)
    return {rank: length for rank, length in list(told.items())[:_MOST_RANKS] if math.isfinite(length)}


def _finite(value: float | None) -> float | None:
    """A counter, if it is a number that can be counted with."""
    return float(value) if value is not None and math.isfinite(value) and value < _MOST else None
