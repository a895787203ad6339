"""What a stranger's checkpoint may do to the terminal and to the reader of the JSON: nothing."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafts import DraftBuild, flat_config, write_draft
from eyas.cli.app import main
from eyas.cli.output import print_json
from eyas.talk import printable

HOSTILE = ["\x1b]0;owned\x07", "\x7f", "\x9b31m", "\u202e", "\u2028", "\r"]


@given(st.text(st.characters()))
def test_printable_text_has_nothing_that_a_terminal_obeys_and_means_the_same_in_json(text: str):
    shown = printable(text)
    assert all(c in "\n\t" or ord(c) > 31 for c in shown)
    shown.encode()
    if "\ud800" <= max(text, default="") <= "\udfff":
        return
    assert json.loads(printable(json.dumps({"x": text}, ensure_ascii=False))) == {"x": text}


def test_the_json_is_one_line_for_every_notion_of_a_line(capsys: pytest.CaptureFixture[str]):
    print_json({"schema": "eyas.x/1", "x": "a\u2028b\x85c\nd"})
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("command", ["header", "check"])
@pytest.mark.parametrize("as_json", [True, False])
def test_a_config_cannot_write_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hostile: str, command: str, as_json: bool
):
    draft = write_draft(tmp_path / "draft")
    config = flat_config(DraftBuild()) | {f"key{hostile}": hostile, "architectures": [hostile]}
    (draft / "config.json").write_text(json.dumps(config))
    flags = ["--for", "vllm==0.33.0", "--ledger"] if command == "check" else []
    assert main([command, str(draft), *flags, *(["--json"] if as_json else [])]) in (0, 1)
    shown = capsys.readouterr()
    assert not any(mark in shown.out + shown.err for mark in HOSTILE)
    if command == "header" or as_json:
        document = json.loads(shown.out)
        assert command == "check" or document["config"]["architectures"] == [hostile]


def test_half_a_surrogate_pair_in_a_config_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    draft = write_draft(tmp_path / "draft")
    (draft / "config.json").write_text('{"model_type": "\\ud800"}')
    assert main(["header", str(draft)]) == 2
    assert "error[json-invalid]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "bench --target t --draft d --data rows.jsonl --out ./rows.jsonl",
        "eval d --target t --data link.jsonl --save-rows rows.jsonl",
        "eval d --target t --out one.json --save-rows one.json",
        "report rows.jsonl -o rows.jsonl",
        "report d -o d/rows.jsonl",
        "eval d --target t --out d/config.json",
        "eval d --target t --out link/d/new.json",
        "eval d/model.safetensors --target t --out d/config.json",
        "eval d --target t --data r --save-rows ./r/new.jsonl",
        "eval d --target ./t --write-probe t/model.safetensors",
        "eval d --target ./t --write-probe blob",
        "bench --draft d --target ./t --out t/config.json",
        "bench --draft d --target t --data r --out r/held_out.jsonl",
    ],
)
def test_no_output_replaces_what_is_read_or_another_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str
):
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("{}")
    Path("link.jsonl").symlink_to("rows.jsonl")
    Path("link").symlink_to(".")
    Path("blob").write_text("weights")
    for path in ("d/config.json", "d/rows.jsonl", "r/held_out.jsonl", "t/config.json"):
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text("{}")
    Path("d/model.safetensors").touch()
    Path("t/model.safetensors").symlink_to("../blob")
    there = sorted(Path().rglob("*"))

    assert main(words.split()) == 2

    assert "error[output-is-input]" in capsys.readouterr().err
    assert sorted(Path().rglob("*")) == there
    assert {path.read_text() for path in Path().rglob("*.json*")} == {"{}"}
    assert Path("blob").read_text() == "weights"
