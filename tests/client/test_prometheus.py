"""The Prometheus text format is read as it is written."""

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.client.prometheus import by_label, parse, total


def test_comments_timestamps_and_garbage_do_not_disturb_the_samples():
    page = '# HELP x y\n# TYPE x counter\nx_total 3\n\nnot a sample here\nx_total{a="b"} 4 1700000000\ny{a="1"} NaN\n'

    samples = parse(page)

    assert [(s.name, dict(s.labels), s.value) for s in samples[:2]] == [
        ("x_total", {}, 3.0),
        ("x_total", {"a": "b"}, 4.0),
    ]
    assert len(samples) == 2, "a NaN counts nothing"


def test_a_metric_is_found_with_and_without_the_suffix_that_clients_append():
    assert total(parse("x_total 3\nx_created 17\n"), "x") == 3.0
    assert total(parse("x 3\n"), "x") == 3.0
    assert total(parse("y 3\n"), "x") is None


def test_values_are_summed_per_label():
    page = 'x{engine="0",p="a"} 1\nx{engine="0",p="b"} 2\nx{engine="1",p="a"} 5\n'

    assert by_label(parse(page), "x", "engine") == {"0": 3.0, "1": 5.0}


@pytest.mark.parametrize(
    "line",
    [
        "x{" + "a" * 15_000 + "} 1",
        "x{" + " " * 15_000 + "} 1",
        "x{" + "a" * (1 << 20) + "} 1",
        'x{a="' + "\\n" * (1 << 20) + '"} 1',
        "x{" + 'a="' * 5000 + "} 1",
        "x" + " " * (1 << 20) + "1 !",
    ],
)
def test_a_line_costs_time_by_its_bytes(line: str):
    begin = time.monotonic()

    parse(line + "\n")

    assert time.monotonic() - begin < 0.3  # minutes before, in which no signal was heeded


def test_a_page_of_short_lines_without_end_costs_bounded_memory():
    page = "a 1\n" * (1 << 20)
    tracemalloc.start()

    samples = parse(page)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(samples) == 200_000
    assert peak < 200 << 20


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")))
def test_any_label_value_survives_the_escapes(value: str):
    written = value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

    (sample,) = parse(f'x{{model="{written}",k="v"}} 1.5\n')

    assert sample.labels == {"model": value, "k": "v"}
