"""Ports and endpoints of real sockets: refused, open, slow, silent."""

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from eyas.contract.engines.registry import all_engines
from eyas.contract.engines.server_at import server_at
from eyas.contract.engines.serving_engine import ServingEngine
from eyas.serve.facts.evidence import EndpointAnswer
from eyas.serve.look.endpoints import Endpoints
from stub_server import Script, StubServer


@pytest.fixture
def slow_url() -> Iterator[str]:
    """A server whose /health takes two seconds, as SGLang's may take twenty."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(2.0)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def poll(endpoints: Endpoints, seconds: float) -> dict[str, EndpointAnswer]:
    end = time.monotonic() + seconds
    found: dict[str, EndpointAnswer] = {}
    while time.monotonic() < end and not found:
        found = endpoints.health(is_ready=False)
        time.sleep(0.05)
    return found


def test_a_slow_health_does_not_stop_the_watch(slow_url: str):
    endpoints = Endpoints(slow_url, "sglang", None)
    start = time.monotonic()
    first = endpoints.health(is_ready=False)

    assert time.monotonic() - start < 0.5
    assert first == {}
    assert poll(endpoints, 6)["/health"].code == 200


def test_nobody_is_refused():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        endpoints = Endpoints(url, "vllm", None)

        assert endpoints.port() == "refused"  # bound and not listening: vLLM while it starts
        assert str(poll(endpoints, 5)["/health"]) == "refused"


@pytest.mark.parametrize(("engine", "version"), [("sglang", None), ("vllm", "0.32.0")])
def test_the_engine_is_known_by_what_it_says_of_itself(engine: str, version: str | None):
    with StubServer(Script(engine=engine, version=version or "0.5.15.post1")) as stub:
        identity = Endpoints(stub.url, "unknown", None).identify()

    assert identity.engine in (engine, "unknown")


def test_a_vllms_counters_are_read():
    from eyas.client.address import ServerAddress, open_http
    from eyas.client.generate import generate
    from eyas.client.server_api import GenerationOptions
    from eyas.contract.engines.registry import server_api

    with StubServer(Script(engine="vllm", version="0.32.0")) as stub:
        address = ServerAddress(url=stub.url, api=server_api("vllm"), model="m")
        with open_http(address) as http:
            generate(http, address, "hello", GenerationOptions(max_new_tokens=40))
        counters = Endpoints(stub.url, "vllm", "0.32.0")._read_counters()

    assert counters is not None
    assert counters.rounds
    assert counters.accepted_at[0] <= counters.rounds
    assert counters.generation_tokens


def test_a_server_without_health_is_known_by_its_models():
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/v1/models" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoints = Endpoints(f"http://127.0.0.1:{server.server_port}", "unknown", None)
    end = time.monotonic() + 6
    found: dict[str, EndpointAnswer] = {}
    while time.monotonic() < end and "/v1/models" not in found:
        found = endpoints.health(is_ready=False)
        time.sleep(0.05)
    server.shutdown()
    server.server_close()

    assert {path: answer.code for path, answer in found.items()} == {"/health": 404, "/v1/models": 200}


@pytest.mark.parametrize("engine", all_engines(), ids=lambda engine: engine.name)
def test_every_engine_is_known_by_what_its_servers_say_of_their_owner(engine: ServingEngine):
    with StubServer(Script(engine=engine.serving.owners[0])) as stub:
        assert Endpoints(stub.url, "unknown", None).identify().engine == engine.name
        assert server_at(stub.url).api is engine.serving
