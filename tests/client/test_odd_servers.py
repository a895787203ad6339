"""Whoever answers there may be no engine at all: garbage, redirects, bodies without end. Real sockets, raw bytes."""

import json
import socket
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eyas.client import address as address_module
from eyas.client.address import ServerAddress, ServerRefused, ServerUnreachable, get_json, open_http
from eyas.client.counters import read
from eyas.client.generate import generate, model_name
from eyas.client.prometheus import parse
from eyas.client.server_api import GenerationOptions
from eyas.contract.engines.registry import server_api
from eyas.contract.engines.sglang.serving import counters_of as of_sglang
from eyas.contract.engines.vllm.serving import counters_of as of_vllm
from eyas.errors import EyasError
from odd_server import answering, fetch, whole

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def test_a_body_without_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(address_module, "MAX_BODY_BYTES", 1 << 20)
    sent = 0

    def flood(connection: socket.socket) -> None:
        nonlocal sent
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65536)
            sent += 65536

    with answering(flood) as url, pytest.raises(ServerRefused, match="has no end"):
        fetch(url)
    assert sent < 32 << 20


@pytest.mark.parametrize(
    ("respond", "error"),
    [
        (lambda c: c.sendall(b"\x16\x03\x00garbage\r\n\r\n"), ServerUnreachable),
        (lambda c: None, ServerUnreachable),
        (lambda c: c.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"), ServerUnreachable),
        (lambda c: c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nab"), ServerUnreachable),
        (whole(b"", b"HTTP/1.1 302 Found\r\nLocation: /metrics"), ServerRefused),
        (whole(b"\xff\xfe broken", b"HTTP/1.1 500 Internal Server Error"), ServerRefused),
    ],
    ids=["garbage", "closed", "half a chunk", "half a body", "redirect to itself", "500 in no encoding"],
)
def test_what_is_no_answer_is_an_error_of_ours(respond: Callable[[socket.socket], None], error: type[EyasError]):
    with answering(respond) as url, pytest.raises(error):
        fetch(url)


@pytest.mark.parametrize("body", [b"[" * 200_000, b'{"data": 5}', b'{"data": [[], 3, {"id": 1}]}', b"\xff", b"null"])
def test_json_of_the_wrong_shape_names_no_model(body: bytes):
    with answering(whole(body)) as url:
        address = ServerAddress(url=url)
        with open_http(address, timeout_s=5) as http:
            assert model_name(http, address) is None
            get_json(http, address, "/server_info")


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
@pytest.mark.parametrize(
    "event",
    ["nonsense", '{"choices": 5}', '{"meta_info": 7}', '{"choices": [{"token_ids": ["a"]}], "output_ids": ["a"]}'],
)
def test_a_stream_of_the_wrong_shape_is_refused_with_what_was_wrong(kind: str, event: str):
    if kind == "sglang" and event == '{"choices": 5}':
        pytest.skip("SGLang's own route has no choices: nothing wrong with them")
    if kind == "vllm" and event == '{"meta_info": 7}':
        pytest.skip("only SGLang's own route has meta_info there")
    with answering(whole(f"data: {event}\n\ndata: [DONE]\n\n".encode())) as url:
        address = ServerAddress(url=url, api=server_api(kind))
        with open_http(address, timeout_s=5) as http, pytest.raises(ServerRefused, match="cannot be read"):
            generate(http, address, [1, 2], GenerationOptions(max_new_tokens=4))


def test_counters_that_are_no_numbers_count_nothing():
    page = "vllm:generation_tokens_total NaN\nvllm:num_requests_running +Inf\nvllm:spec_decode_num_drafts_total NaN\n"

    reading = of_vllm(parse(page))

    assert (reading.generated_tokens, reading.running, dict(reading.acceptance)) == (None, None, {})


@settings(max_examples=60)
@given(_JSON)
def test_any_server_info_is_taken(value: object):
    of_sglang((), {"internal_states": value, "speculative_algorithm": value})


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(["drafts", "draft_tokens", "accepted_tokens_per_pos"]), st.floats()), max_size=8)
)
@example([("drafts", 1.7e308)] * 2)
def test_any_values_of_vllms_counters_are_taken(rows: list[tuple[str, float]]):
    lines = [f'vllm:spec_decode_num_{name}_total{{engine="0",position="{i}"}} {v}' for i, (name, v) in enumerate(rows)]

    of_vllm(parse("\n".join(lines)))


def test_a_proxy_page_instead_of_metrics_gives_an_empty_reading():
    with answering(whole(json.dumps({"hello": 1}).encode())) as url:
        assert read(ServerAddress(url=url, api=server_api("vllm"))).generated_tokens is None


@pytest.mark.parametrize("url", ["http://x/\x1b[31m", "http://[::1", "http://a\nb"])
def test_a_url_that_is_none_is_told(url: str):
    with pytest.raises(ServerUnreachable):
        fetch(url)
