"""Answers that are made to hurt: compressed, endless, infinite, with positions and ranks beyond all sense."""

import gzip
import json
import time
import zlib

import pytest

from eyas.client.address import AnswerEndless, ServerAddress, ServerRefused, get_json, get_text, open_http
from eyas.client.generate import generate
from eyas.client.prometheus import parse
from eyas.client.server_api import MOST_POSITIONS, GenerationOptions
from eyas.contract.engines.registry import server_api
from eyas.contract.engines.sglang.serving import counts_of as counts_of_sglang
from eyas.contract.engines.vllm.serving import counters_of
from eyas.contract.engines.vllm.serving import counts_of as counts_of_vllm
from odd_server import answering, fetch, whole


def ask(url: str, *, max_seconds: float | None = None) -> object:
    address = ServerAddress(url=url, api=server_api("sglang"))
    with open_http(address, timeout_s=5) as http:
        return generate(http, address, "hello", GenerationOptions(max_new_tokens=1, max_seconds=max_seconds))


@pytest.mark.parametrize("encoding", ["gzip", "gzip, gzip", "deflate", "br"])
def test_a_compressed_answer_is_refused_unread(encoding: str):
    body = gzip.compress(gzip.compress(bytes(50 << 20))) if "gzip" in encoding else zlib.compress(bytes(50 << 20))
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}".encode()
    with answering(whole(body, head)) as url:
        with pytest.raises(ServerRefused) as caught:
            fetch(url)
        with pytest.raises(ServerRefused):
            ask(url)

    assert "compressed" in str(caught.value)


@pytest.mark.parametrize("charset", ["punycode", "zlib", "rot13", "no-such"])
def test_the_charset_that_an_answer_claims_is_not_believed(charset: str):
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset={charset}".encode()
    with answering(whole("ä".encode(), head)) as url:
        assert fetch(url) == "ä"


def test_a_json_answer_is_refused_before_it_becomes_thirty_times_as_many_bytes_of_objects():
    body = b'{"data": [' + b"[]," * (2 << 20) + b"[]]}"
    with answering(whole(body)) as url:
        address = ServerAddress(url=url)
        with open_http(address) as http, pytest.raises(AnswerEndless, match="at most 4 MiB"):
            get_json(http, address, "/v1/models")
        with open_http(address) as http:
            assert len(get_text(http, address, "/metrics") or "") == len(body)


def test_one_endless_line_of_a_stream_is_refused_before_it_fills_the_memory():
    def respond(connection) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ndata: ")
        while True:
            connection.sendall(b"x" * 65536)

    with answering(respond) as url, pytest.raises(AnswerEndless):
        ask(url)


def test_an_answer_that_streams_for_ever_ends_when_its_time_is_up():
    def respond(connection) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        while True:
            connection.sendall(b'data: {"text": "x", "output_ids": [1], "meta_info": {}}\n\n')
            time.sleep(0.05)

    start = time.monotonic()
    with answering(respond) as url, pytest.raises(AnswerEndless):
        ask(url, max_seconds=0.5)

    assert time.monotonic() - start < 4


@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "NaN", "1e308", "9" * 400, "-1", "true", '"x"', "[[]]"])
def test_numbers_that_nothing_counts_are_no_counts(value: str):
    meta = json.loads(
        f'{{"spec_verify_ct": {value}, "spec_correct_drafts_histogram": [{value}, 1], "completion_tokens": {value},'
        f' "spec_num_correct_drafts": {value}, "spec_num_proposed_drafts": {value}}}'
    )
    counts = counts_of_sglang(meta, None).acceptance

    assert counts is None or len(counts.accepted_at) <= MOST_POSITIONS


def test_histograms_are_as_long_as_drafts_can_be():
    start = time.monotonic()
    long = [1] * 2_000_000

    assert counts_of_vllm({"speculative_decoding": {"acceptance_histogram": long}}).acceptance is None
    assert counts_of_sglang({"spec_verify_ct": 5, "spec_accept_histogram": long}, None).acceptance is None
    assert time.monotonic() - start < 1


def test_labels_cost_no_more_than_their_bytes():
    rows = [
        'vllm:spec_decode_num_drafts_total{engine="0"} 10',
        'vllm:spec_decode_num_draft_tokens_total{engine="0"} 30',
    ]
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    rows += [f'{name}{{engine="0",position="{p}"}} 5' for p in ("0", "1", "99999999999", "-1", "x", "٣", "1e9")]
    rows += [f'vllm:spec_decode_num_drafts_total{{engine="e{n}"}} 1' for n in range(20_000)]
    rows += [f'{name}{{engine="e{n}",position="0"}} 1' for n in range(20_000)]
    start = time.process_time()
    counters = counters_of(parse("\n".join(rows)))

    assert time.process_time() - start < 3
    assert counters.acceptance["0"].accepted_at == (5, 5)
    assert (counters.num_ranks or 0) <= 1024
