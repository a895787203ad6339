"""SGLang's counts mean the same in every version, whatever they are called."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.contract.engines.sglang.serving import accept_rate_of_log_line, counts_of, of_histogram
from eyas.decode.accept_length import Acceptance

PAYLOADS = Path(__file__).parents[2] / "client" / "payloads"
VERSIONS = ["0.5.9", "0.5.12", "0.5.15.post1", "0.5.23"]


def meta(version: str) -> dict[str, object]:
    return json.loads((PAYLOADS / f"sglang-{version}-generate.json").read_text())["meta_info"]


@pytest.mark.parametrize("version", VERSIONS)
def test_each_versions_names_give_the_same_counts(version: str):
    counts = counts_of(meta(version))

    assert counts.acceptance == Acceptance(4, (3, 1, 1), (4, 4, 4))
    assert counts.notes == ()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_engines_own_accept_length_counts_the_prefills_token_and_ours_does_not(version: str):
    assert meta(version)["spec_accept_length"] == 10 / 4
    acceptance = counts_of(meta(version)).acceptance
    assert acceptance is not None
    assert acceptance.accept_length == 9 / 4


def test_the_rank_that_answered_is_told():
    assert counts_of(meta("0.5.23")).dp_rank == 1
    assert counts_of(meta("0.5.15.post1")).dp_rank is None


def test_a_dead_draft_shows_its_depth_though_its_histogram_has_one_entry():
    counts = counts_of({"spec_verify_ct": 7, "spec_correct_drafts_histogram": [7], "spec_num_proposed_drafts": 21})

    assert counts.acceptance == Acceptance(7, (0, 0, 0), (7, 7, 7))
    assert counts.acceptance.accept_length == 1.0


def test_an_answer_without_verify_passes_has_no_counts():
    assert counts_of({"completion_tokens": 1, "prompt_tokens": 3}).acceptance is None


def test_passes_without_a_histogram_are_said_not_guessed():
    counts = counts_of({"spec_verify_ct": 7, "spec_num_correct_drafts": 3})

    assert counts.acceptance is None
    assert "no histogram" in counts.notes[0]


def test_counters_that_disagree_are_said():
    counts = counts_of({"spec_verify_ct": 5, "spec_num_correct_drafts": 9, "spec_correct_drafts_histogram": [2, 2]})

    assert len(counts.notes) == 2
    assert counts.acceptance == Acceptance(4, (2,), (4,))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_a_histogram_holds_all_that_the_rounds_held(rounds: list[int]):
    histogram = [rounds.count(n) for n in range(max(rounds) + 1)]

    assert of_histogram(histogram, 5) == Acceptance.of_rounds(rounds, 5)


def test_the_log_lines_rate_changed_its_meaning():
    assert accept_rate_of_log_line(1.0, 4, "0.5.9") == 0.25
    assert accept_rate_of_log_line(1.0, 4, "0.5.15.post1") == 0.0
