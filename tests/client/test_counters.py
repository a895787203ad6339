"""A server's counters, read over HTTP, from payloads of each version and from a running stub."""

import json
from pathlib import Path

from eyas.client.address import ServerAddress, open_http
from eyas.client.counters import read as read_address
from eyas.client.generate import generate
from eyas.client.prometheus import parse
from eyas.client.server_api import Counters, GenerationOptions
from eyas.contract.engines.registry import server_api
from eyas.contract.engines.sglang.serving import counters_of as of_sglang
from eyas.contract.engines.vllm.serving import counters_of as of_vllm
from stub_server import Script, StubServer

PAYLOADS = Path(__file__).parent / "payloads"


def read(url: str, engine: str, version: str | None = None) -> Counters:
    return read_address(ServerAddress(url=url, api=server_api(engine), version=version))


def test_vllms_page_is_read_per_rank():
    counters = of_vllm(parse((PAYLOADS / "vllm-0.25.1-metrics.txt").read_text()))

    assert counters.generated_tokens == 1300.0
    assert (counters.running, counters.waiting, counters.num_ranks) == (2, 1, 2)
    assert counters.speculates is True
    assert counters.acceptance["1"].rounds == 30


def test_sglangs_page_is_summed_over_its_labels():
    counters = of_sglang(parse((PAYLOADS / "sglang-0.5.23-metrics.txt").read_text()), None)

    assert counters.generated_tokens == 720.0
    assert (counters.running, counters.waiting) == (3, 0)
    assert counters.speculates is True
    assert 699.0 in counters.progress_mark


def test_a_rank_without_a_lifetime_average_is_left_out_not_set_to_one():
    info = json.loads((PAYLOADS / "sglang-0.5.15.post1-server_info.json").read_text())

    counters = of_sglang((), info)

    assert counters.accept_lengths == {"0": 2.25}
    assert counters.num_ranks == 2
    assert counters.speculates is True
    assert "--enable-metrics" in counters.notes[0]


def test_a_plain_server_is_said_not_to_speculate():
    with StubServer(Script(engine="vllm", speculates=False)) as stub:
        assert read(stub.url, "vllm").speculates is False
    with StubServer(Script(engine="sglang", speculates=False)) as stub:
        assert read(stub.url, "sglang", "0.5.15.post1").speculates is False


def test_the_progress_mark_moves_when_tokens_are_made_and_not_otherwise():
    for engine in ("sglang", "vllm"):
        with StubServer(Script(engine=engine)) as stub:
            address = ServerAddress(url=stub.url, api=server_api(engine))
            before = read(stub.url, engine)
            idle = read(stub.url, engine)
            with open_http(address) as http:
                generate(http, address, [1, 2], GenerationOptions(max_new_tokens=5))
            after = read(stub.url, engine)

        assert before.progress_mark == idle.progress_mark != after.progress_mark


def test_an_unknown_server_gives_an_empty_reading_with_a_reason():
    with StubServer(Script()) as stub:
        counters = read(stub.url, "somebody-elses")

    assert counters.progress_mark == ()
    assert counters.notes
