"""One generation is the same `ServerAnswer`, whichever server answered and however it streams."""

import pytest

from eyas.client.address import ServerAddress, ServerRefused, ServerUnreachable, open_http
from eyas.client.generate import generate, model_name
from eyas.client.server_api import GenerationOptions
from eyas.contract.engines.registry import server_api
from eyas.decode.accept_length import Acceptance
from stub_server import Script, StubServer

TEN = GenerationOptions(max_new_tokens=10, depth=3)


def ask(script: Script, prompt: object, options: GenerationOptions = TEN, **more: object):
    with StubServer(script) as stub:
        address = ServerAddress(url=stub.url, api=server_api(script.engine), version=script.version, model="stub")
        with open_http(address) as http:
            return generate(http, address, prompt, options, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("version", ["0.5.9", "0.5.15.post1"])
def test_sglangs_cumulative_and_incremental_streams_give_the_same_answer(version: str, incremental: bool):
    answer = ask(Script(version=version, incremental=incremental), [1, 2, 3])

    assert answer.output_ids == tuple(range(100, 110))
    assert answer.text == "".join(f"w{i} " for i in range(100, 110))
    assert answer.chunk_tokens == (1, 3, 2, 1, 3)
    assert (answer.num_prompt_tokens, answer.num_output_tokens, answer.finish_reason) == (3, 10, "length")
    assert answer.counts.acceptance == Acceptance.of_rounds([2, 1, 0, 3], 3)


def test_vllm_gets_ids_and_gives_ids_per_chunk():
    script = Script(engine="vllm", version="0.25.1")

    answer = ask(script, [1, 2, 3])

    assert script.requests[0]["path"] == "/v1/completions"
    assert script.requests[0]["body"]["prompt"] == [1, 2, 3]
    assert script.requests[0]["body"]["return_token_ids"] is True
    assert answer.output_ids == tuple(range(100, 110))
    assert answer.chunk_tokens == (1, 3, 2, 1, 3)
    assert len(answer.chunk_times_s) == 5


def test_messages_go_to_the_chat_route_of_every_server():
    script = Script(engine="sglang")

    ask(script, [{"role": "user", "content": "Hello"}])

    assert script.requests[0]["path"] == "/v1/chat/completions"
    assert script.requests[0]["body"]["messages"] == [{"role": "user", "content": "Hello"}]


def test_a_rank_is_chosen_in_the_words_of_each_engine():
    new, old, vllm = Script(ranks=2), Script(ranks=2, version="0.5.9"), Script(ranks=2, engine="vllm")

    assert ask(new, [1], dp_rank=1).counts.dp_rank == 1
    assert ask(old, [1], dp_rank=1).counts.dp_rank == 1
    ask(vllm, [1], dp_rank=1)

    assert new.requests[0]["body"]["routed_dp_rank"] == 1
    assert old.requests[0]["body"]["data_parallel_rank"] == 1
    assert vllm.requests[0]["headers"]["X-data-parallel-rank"] == "1"
    assert server_api("sglang").choose_rank(1, None) == ({"routed_dp_rank": 1}, {})


def test_the_key_is_sent_and_never_shown():
    address = ServerAddress(url="http://127.0.0.1:1", api_key="sesame")

    assert address.headers == {"Authorization": "Bearer sesame"}
    assert "sesame" not in repr(address)


def test_a_refusal_quotes_the_servers_words():
    with pytest.raises(ServerRefused, match="HTTP 400") as caught:
        ask(Script(fail_with=400), [1])

    assert "told to fail" in caught.value.why


def test_nobody_there_is_said_in_the_houses_form():
    address = ServerAddress(url="http://127.0.0.1:9", api=server_api("vllm"))
    with open_http(address, timeout_s=2) as http, pytest.raises(ServerUnreachable) as caught:
        generate(http, address, [1], TEN)

    assert caught.value.do.endswith("eyas watch http://127.0.0.1:9")


def test_a_stuck_engine_is_told_from_a_missing_one():
    with StubServer(Script(stuck_ranks=frozenset({0}))) as stub:
        address = ServerAddress(url=stub.url, api=server_api("sglang"))
        no_answer = pytest.raises(ServerUnreachable, match="no answer from /generate")
        with open_http(address, timeout_s=0.3) as http, no_answer:
            generate(http, address, [1], TEN)


def test_the_first_served_name_is_found():
    with StubServer(Script()) as stub:
        address = ServerAddress(url=stub.url)
        with open_http(address) as http:
            assert model_name(http, address) == "stub"


def test_a_proxy_is_never_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)

    assert ask(Script(), [1]).output_ids is not None
