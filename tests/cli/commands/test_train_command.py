import json
from pathlib import Path

import pytest

from eyas.cli.app import COMMANDS, build_app, main
from eyas.cli.synonyms import _OURS
from eyas.cli.train_text import _held_out_lines
from train_run_folder import make_run_folder


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    target, rows = make_run_folder(tmp_path_factory.mktemp("inputs"))
    small = ["--draft-vocab-size", "32", "--ttt-steps", "2", "--device", "cpu", "--steps", "3"]
    return ["train", "--target", str(target), "--data", str(rows), *small]


def test_it_says_what_was_learned_with_the_definitions_beside_the_numbers(arguments, tmp_path: Path, capsys):
    assert main([*arguments, "--out", str(tmp_path / "draft")]) == 0
    said = capsys.readouterr()

    assert "loss " in said.out
    assert "a token outside the draft vocabulary counts as wrong" in said.out
    for label in ("accuracy", "joint", "conditional"):
        assert f"  {label} " in said.out
    assert "draft vocabulary: 32 tokens cover 100.00% of the supervised ones" in said.err
    assert (
        "note: chosen for 3 steps, muon and a new draft of width 32: a peak learning rate of 0.036 (--lr)" in said.err
    )
    assert (tmp_path / "draft" / "model.safetensors").exists()


def test_json_gives_plan_and_outcome(arguments, tmp_path: Path, capsys):
    assert main([*arguments, "--out", str(tmp_path / "draft"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "eyas.train/1"
    assert document["steps"] == 3
    assert document["vocabulary_coverage"] == 1.0
    assert set(document["metrics"]["last"]) == {"loss", "accuracy", "joint", "conditional"}
    assert len(document["metrics"]["last"]["accuracy"]) == 2


def test_a_dry_run_shows_the_plan_and_writes_nothing(arguments, tmp_path: Path, capsys):
    assert main([*arguments, "--out", str(tmp_path / "draft"), "--dry-run"]) == 0
    assert "nothing written (--dry-run)" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_init_only_says_that_the_draft_is_untrained(arguments, tmp_path: Path, capsys):
    assert main([*arguments, "--out", str(tmp_path / "draft"), "--init-only"]) == 0
    assert "an initialised, untrained draft" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        (["--lr", "-1"], "train-config-invalid"),
        (["--lr", "inf"], "train-config-invalid"),
        (["--seed", "99999999999999999999999"], "usage"),
        (["--threads", "0"], "train-config-invalid"),
        (["--threads", "100000"], "train-config-invalid"),
        (["--aux-boundaries", "2", "4"], "train-config-invalid"),
        (["--draft-vocab-size", "ful"], "usage"),
        (["--ttt-steps", "1.5"], "usage"),
        (["--draft-vocab-size", "32", "--draft-vocab-size", "64"], "usage"),
        (["--los", "kl"], "usage"),
    ],
)
def test_wrong_options_are_usage_errors(arguments, tmp_path: Path, capsys, extra, code):
    assert main([*arguments, "--out", str(tmp_path / "draft"), *extra]) == 2
    assert capsys.readouterr().err.split("]")[0].endswith(f"error[{code}")


def test_the_three_boundaries_stand_behind_one_option_as_its_error_writes_them(arguments, tmp_path: Path, capsys):
    assert main([*arguments, "--out", str(tmp_path / "d"), "--dry-run", "--aux-boundaries", "2", "4", "500"]) == 2
    said = capsys.readouterr().err
    assert "error[aux-boundary-beyond-target]" in said
    assert "--aux-boundaries 2 4 500" in said


def test_a_folder_that_holds_no_rows_is_named(arguments, tmp_path: Path, capsys):
    other = [*arguments[:3], "--data", str(tmp_path), "--out", str(tmp_path / "draft")]
    assert main(other) == 2
    assert "error[rows-unreadable]" in capsys.readouterr().err


def test_the_last_figure_is_that_of_the_file_and_what_chose_it_is_said_where_it_differs():
    measured = {"accept_lengths": [[4, 1.3905], [8, 1.2]], "kept": {"step": 4}, "steps": 8}
    written = {"step": 4, "accept_length": 1.3506, "num_requests": 6, "rounds": 174, "num_draft_tokens": 5}
    lines = _held_out_lines({**measured, "written": written})
    assert lines[-1] == (
        "accept length of the draft as written: 1.351; 1.391 while training (6 rows, 174 rounds, 5 drafts a pass)"
    )
    same = _held_out_lines({**measured, "written": {**written, "accept_length": 1.3905}})
    assert "while training" not in same[-1]
    kinds = _held_out_lines({**measured, "written": {**written, "sets": {"chat": 2.1, "summary": 1.514}}})
    assert "1.391 while training; weakest set: summary, 1.51 (6 rows" in kinds[-1]


def test_json_has_the_figure_of_the_file_and_the_warning(arguments, tmp_path: Path, capsys):
    held_out = tmp_path / "held_out.jsonl"
    # Byte 7 is in no answer: outside the draft vocabulary, so that nothing can be accepted.
    held_out.write_text(json.dumps({"prompt_ids": [40, 41], "response_ids": [7] * 12}) + "\n")
    assert main([*arguments, "--out", str(tmp_path / "draft"), "--held-out", str(held_out), "--json"]) == 0
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert document["written"]["accept_length"] == 1.0
    assert document["notes"][0].startswith("nothing is accepted: accept length 1.00")
    assert f"note: {document['notes'][0]}" in said.err
    assert "accept length of the draft as written: 1.000 (1 rows" in said.err


def test_an_option_out_of_range_is_named_as_it_was_typed(arguments, tmp_path: Path, capsys):
    assert main([*arguments, "--out", str(tmp_path / "d"), "--held-out-draft-tokens", "99", "--seed", "-1"]) == 2
    assert "= why: --held-out-draft-tokens is 99, wanted 1 … 16; --seed is -1, wanted 0 …" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        (["--learning-rate", "1"], "--lr"),
        (["--learning_rate=1"], "--lr"),
        (["--batch-size", "8"], "--batch-tokens"),
        (["--output-dir", "x"], "--out"),
        (["--stepss", "8"], "--steps"),  # the nearest in spelling
    ],
)
def test_a_name_of_other_programs_is_answered_with_ours(arguments, typed, ours, tmp_path: Path, capsys):
    assert main([*arguments, "--out", str(tmp_path), *typed]) == 2
    assert f"Did you mean {ours}?" in capsys.readouterr().err


def test_every_name_of_ours_is_an_option_of_some_command():
    app = build_app()
    known = {name for command in COMMANDS for a in app[command].assemble_argument_collection() for name in a.names}
    assert {ours for many in _OURS.values() for ours in many} <= known
