"""vLLM's counters become the one definition."""

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from eyas.client.counters import difference
from eyas.client.prometheus import parse
from eyas.contract.engines.vllm.serving import counts_of, of_metrics
from eyas.decode.accept_length import Acceptance

PAYLOADS = Path(__file__).parents[2] / "client" / "payloads"


def page() -> str:
    return (PAYLOADS / "vllm-0.25.1-metrics.txt").read_text()


def test_each_rank_has_its_own_counts():
    by_rank = of_metrics(parse(page()))

    assert by_rank is not None
    assert by_rank["0"] == Acceptance(500, (350, 233, 150), (500, 500, 497))
    assert by_rank["1"] == Acceptance(30, (20, 12, 4), (30, 30, 30))


def test_the_accept_rate_is_exact_though_positions_of_short_rounds_are_not_told():
    by_rank = of_metrics(parse(page()))

    assert by_rank is not None
    assert by_rank["0"].accept_rate == 733 / 1497
    assert by_rank["0"].accept_length == 1 + 733 / 500


def test_without_speculation_the_counters_do_not_exist():
    assert of_metrics(parse('vllm:generation_tokens_total{engine="0"} 3\n')) is None


def test_one_answers_counts_are_read_where_the_server_gives_them():
    metrics = json.loads((PAYLOADS / "vllm-0.33.0-answer-metrics.json").read_text())

    assert counts_of(metrics).acceptance == Acceptance(4, (3, 1, 1), (4, 4, 4))
    assert counts_of({}).acceptance is None


def test_a_restart_between_two_readings_counts_from_zero():
    assert difference(Acceptance(3, (2, 1), (3, 3)), Acceptance(9, (9, 9), (9, 9))) == Acceptance(3, (2, 1), (3, 3))


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=40))
def test_what_came_between_two_readings_is_what_happened_between_them(first: list[int], then: list[int]):
    before = Acceptance.of_rounds(first, 3)

    assert difference(before + Acceptance.of_rounds(then, 3), before) == Acceptance.of_rounds(then, 3)
