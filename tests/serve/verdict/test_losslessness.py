"""Answers are compared token by token, and a difference is weighed by the target itself."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.client.address import ServerAddress, open_http
from eyas.contract.engines.registry import server_api
from eyas.serve.verdict.losslessness import (
    ExpectedAnswer,
    ExpectFileInvalid,
    compare_answers,
    first_difference,
    read_expected,
)
from stub_server import Script, StubServer

WANTED = ExpectedAnswer(prompt_ids=(1, 2), response_ids=tuple(range(100, 120)))


def compare(script: Script, *expected: ExpectedAnswer):
    with StubServer(script) as stub:
        address = ServerAddress(url=stub.url, api=server_api(script.engine), model="stub")
        with open_http(address) as http:
            return compare_answers(http, address, expected)


def diverging(engine: str, top: dict[int, float] | None, at: int = 7) -> Script:
    return Script(
        engine=engine,
        answer=lambda prompt: [*range(100, 100 + at), 999, *range(300, 400)],
        top_logprobs=top,
    )


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_equal_answers_are_lossless(engine: str):
    found = compare(Script(engine=engine), WANTED, WANTED)

    assert (found.num_compared, found.num_equal, found.num_tokens) == (2, 2, 40)
    assert not found.is_broken
    assert str(found) == "2 of 2 answers equal the target's own (40 tokens agreed)"


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_near_tie_is_numerics_not_a_fault(engine: str):
    found = compare(diverging(engine, {999: -0.69, 107: -0.72}), WANTED)

    (divergence,) = found.divergences
    assert (divergence.position, divergence.expected, divergence.got) == (7, 107, 999)
    assert divergence.is_near_tie
    assert not found.is_broken
    assert "1 near-ties of the target (numerics, no fault)" in str(found)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_an_answer_that_the_target_itself_would_not_give_is_a_fault(engine: str):
    found = compare(diverging(engine, {107: -0.01, 5: -6.0}), WANTED)

    assert found.is_broken
    assert found.divergences[0].gap_nats == pytest.approx(-5.99)
    assert "1 that the served target itself would not give" in str(found)


def test_an_answer_that_is_no_likely_token_at_all_is_a_fault_whatever_was_expected():
    found = compare(diverging("vllm", {5: -0.1, 6: -3.0}), WANTED)

    assert found.is_broken
    assert found.divergences[0].regret_nats == pytest.approx(2.9)


def test_an_expectation_from_another_target_is_told_from_a_fault():
    found = compare(diverging("sglang", {999: -0.01, 107: -6.0}), WANTED)

    assert not found.is_broken
    assert found.divergences[0].is_targets_choice


def test_the_weighing_request_ends_at_the_agreed_prefix():
    script = diverging("vllm", {107: -0.01, 5: -6.0}, at=3)

    compare(script, WANTED)

    assert script.requests[-1]["body"]["prompt"] == [1, 2, 100, 101, 102]
    assert script.requests[-1]["body"]["max_tokens"] == 1


def test_an_answer_that_ends_early_is_a_difference_that_cannot_be_weighed():
    found = compare(Script(answer=lambda prompt: list(range(100, 110))), WANTED)

    assert found.divergences[0].position == 10
    assert found.divergences[0].gap_nats is None
    assert "1 that could not be weighed" in str(found)


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_the_first_difference_is_where_the_common_prefix_ends(a: list[int], b: list[int]):
    place = first_difference(a, b)

    if place is None:
        assert a == b
    else:
        assert a[:place] == b[:place]
        assert a[place : place + 1] != b[place : place + 1]


def test_expected_answers_are_read_up_to_a_limit(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt_ids": [1], "response_ids": [i]}) + "\n" for i in range(20)))

    rows = read_expected(file, limit=3)

    assert [r.response_ids for r in rows] == [(0,), (1,), (2,)]


@pytest.mark.parametrize("text", ["", "not json\n", '{"prompt": "x"}\n', '{"prompt_ids": ["a"], "response_ids": []}\n'])
def test_a_file_without_ids_is_refused(tmp_path: Path, text: str):
    file = tmp_path / "rows.jsonl"
    file.write_text(text)

    with pytest.raises(ExpectFileInvalid):
        read_expected(file)
