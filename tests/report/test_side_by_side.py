"""Trained, predicted and served figures out of a run's documents: each once, by kind, and nothing that is not there."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.report.build import build_report
from eyas.report.side_by_side import columns_of, range_text, share_text, table_lines
from run_documents import HOSTILE, benchmark, evaluation, summary

CHECK = {
    "schema": "eyas.check/1",
    "probe": {
        "trained": summary(2.3, [0.6, 0.4, 0.3]),
        "engines": {
            "sglang==0.5.9": {
                "served": {"zeros": summary(1.0, [0.0, 0.0, 0.0]), "garbage": summary(1.25, [0.2, 0.05, 0.0])}
            },
            "vllm==0.33.0": {"refused": "emulation-impossible", "why": "it does not start"},
        },
    },
}
PARITY = {
    "schema": "eyas.parity/1",
    "verdict": "different",
    "served": summary(1.1, [0.1, 0.0, 0.0]),
    "replayed": summary(2.3, [0.6, 0.4, 0.3]),
}
VERDICT = {"schema": "eyas.verdict/1", "accept_length": 1.1, "per_position": [0.1, 0.0, 0.0], "rounds": 212}


def test_every_document_gives_its_figures_once_trained_first():
    bench = benchmark()
    bench["comparisons"][0]["arm"] = "k=3"
    documents = [
        ("verdict", VERDICT),
        ("parity", PARITY),
        ("check", CHECK),
        ("bench", bench),
        ("eval", evaluation(2.27)),
    ]
    found = [(c.kind, c.source, c.accept_length) for c in columns_of(documents)]

    assert found == [
        ("trained", "parity, replay of the served text", (2.3, 2.3)),
        ("trained", "check, pack", (2.3, 2.3)),
        ("trained", "eval", (2.27, 2.27)),
        ("predicted", "check, sglang==0.5.9", (1.0, 1.25)),
        ("served", "verdict", (1.1, 1.1)),
        ("served", "parity", (1.1, 1.1)),
        ("served", "bench, k=3", (2.2, 2.2)),
    ]


def test_trees_and_empty_measurements_have_no_column():
    tree = {**evaluation(2.5), "tree": {"width": 2, "depth": 2, "num_nodes": 3}}
    nothing = {**VERDICT, "accept_length": None, "rounds": 0}

    assert columns_of([("eval", tree), ("verdict", nothing), ("other", {"schema": "eyas.timeline/1"})]) == []


def test_a_range_shows_both_ends_and_one_figure_once():
    assert (range_text((1.0, 1.4213), 3), range_text((2.3, 2.3), 3)) == ("1.000 – 1.421", "2.300")
    assert (share_text((0.0, 0.21)), share_text((1.0, 1.0))) == (".00–.21", "1.00")


shares = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@given(st.lists(st.tuples(st.floats(1, 9), shares), min_size=1, max_size=6))
def test_the_table_has_one_line_a_column_whatever_the_depths(given_):
    documents = [(f"e{i}", {**evaluation(length), "per_position": at}) for i, (length, at) in enumerate(given_)]
    lines = table_lines(columns_of(documents))

    assert len(lines) == 2 + len(given_)
    for (length, at), line in zip(given_, lines[2:], strict=True):
        assert f"{length:.3f}" in line
        assert line.rstrip().endswith(f"{at[-1]:.2f}".removeprefix("0"))


def test_the_page_shows_them_side_by_side(tmp_path: Path):
    for name, document in (("eval", evaluation(2.27)), ("check", CHECK), ("parity", PARITY), ("verdict", VERDICT)):
        content = {"engines": {}, "findings": [], **document} if name == "check" else document
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    page = build_report([tmp_path])

    assert "Trained, predicted, served" in page
    assert "predicted: check, sglang==0.5.9" in page
    assert "1.000 – 1.250" in page
    assert "DIFFERENT: the server does not run the draft as it was trained" in page
    assert ">212<" in page


@pytest.mark.parametrize("kind", ["eval", "verdict"])
def test_one_kind_alone_gives_no_card(tmp_path: Path, kind: str):
    document = evaluation(2.27) if kind == "eval" else VERDICT
    (tmp_path / f"{kind}.json").write_text(json.dumps(document))

    assert "Trained, predicted, served" not in build_report([tmp_path])


def test_a_damaged_document_is_listed_and_costs_no_other(tmp_path: Path):
    (tmp_path / "eval.json").write_text(json.dumps(evaluation(2.27)))
    (tmp_path / "parity.json").write_text(json.dumps({"schema": "eyas.parity/1", "served": HOSTILE, "replayed": 3}))
    page = build_report([tmp_path])

    assert "does not follow eyas.parity/1" in page
    assert "2.27" in page
    assert HOSTILE not in page
