import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from byte_tokenizer import save_target_with
from eyas.cli.app import main
from writing_server import Writer, WritingServer
from writing_target import save_writing_target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target_with(tmp_path_factory.mktemp("target"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    records = [
        {"messages": [{"role": "user", "content": "Hi\x1b[2J"}, {"role": "assistant", "content": "Hello!"}]},
        {"messages": [{"role": "user", "content": "Nobody answers"}]},
    ]
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_it_shows_a_row_with_the_supervised_text_marked_and_counts_what_is_left_out(target, data, tmp_path, capsys):
    arguments = ["prepare", "--target", str(target), "--data", str(data), "--out", str(tmp_path / "rows")]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()

    assert lines[:-1] == [
        "One row; the supervised text is between ⟦ and ⟧:",
        "<|im_start|>user",
        "Hi\\x1b[2J<|im_end|>",  # data must not steer the terminal
        "<|im_start|>assistant",
        "⟦Hello!<|im_end|>⟧",
        "",
        "1 rows, 32 tokens, 7 supervised (22%), longest 32",
        f"  left out or cut: 1 × no assistant turn (first: {data}:2)",
    ]
    assert lines[-1].startswith(f"{tmp_path / 'rows'}: written, fingerprint ")

    assert main(arguments) == 0
    assert ": there already, fingerprint " in capsys.readouterr().out


def test_json_is_one_object_with_a_schema_and_dry_run_writes_nothing(target, data, tmp_path, capsys):
    out = tmp_path / "rows"
    arguments = ["prepare", "--target", str(target), "--data", str(data), "--out", str(out), "--dry-run", "--json"]
    assert main(arguments) == 0
    document = json.loads(capsys.readouterr().out)

    assert document["schema"] == "eyas.prepare/1"
    assert (document["num_rows"], document["num_supervised"], document["dry_run"]) == (1, 7, True)
    assert document["dropped"] == {"no assistant turn": 1}
    assert not out.exists()


def test_a_bad_option_is_a_usage_error(target, data, tmp_path, capsys):
    arguments = ["prepare", "--target", str(target), "--data", str(data), "--out", str(tmp_path / "rows")]
    assert main([*arguments, "--max-length", "3"]) == 2
    assert capsys.readouterr().err.startswith("error[config-invalid]: ")


def test_an_unknown_target_names_the_nearest_alias(data, tmp_path, capsys):
    assert main(["prepare", "--target", "smolm2-135m", "--data", str(data), "--out", str(tmp_path / "rows")]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error[target-unknown]: there is no target smolm2-135m\n")
    assert "did you mean smollm2-135m?" in shown


@pytest.mark.parametrize("line", ["[" * 200_000, '{"messages": [{"role": "user", "content": "\\ud800"}]}'])
def test_a_line_that_json_or_utf8_cannot_hold_is_bad_data(target, tmp_path, capsys, line):
    data = tmp_path / "d.jsonl"
    data.write_text(line)
    assert main(["prepare", "--target", str(target), "--data", str(data), "--out", str(tmp_path / "rows")]) == 2
    assert "error[data-malformed]: line 1 of d.jsonl" in capsys.readouterr().err


def test_odd_answers_are_left_out_and_counted(target, data, tmp_path, capsys):
    odd = {"role": "assistant", "content": [1], "reasoning_content": "x"}
    record = json.dumps({"messages": [{"role": "user", "content": "Hi"}, odd]})
    data.write_text(f"{data.read_text()}{record}\n")
    assert main(["prepare", "--target", str(target), "--data", str(data), "--out", str(tmp_path / "rows")]) == 0
    assert "1 × a turn whose content is not text" in capsys.readouterr().out


WRITING = [
    "--min-user-words",
    "1",
    "--user-temperature",
    "0.25",
    "--max-user-tokens",
    "40",
    "--max-answer-tokens",
    "12",
]


def test_self_chat_needs_no_data_and_its_conversations_are_data_for_the_next_run(tmp_path, capsys):
    target, out = save_writing_target(tmp_path / "target"), tmp_path / "rows"
    arguments = ["prepare", "--target", str(target), "--out", str(out), "--device", "cpu", *WRITING]
    chat = ["--self-chat", "40", "--answer-temperature", "0", "0", "0.7", "--held-out", "2"]
    assert main([*arguments, *chat, "--json"]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)

    assert "turn 1: the target writes 40 user turns" in shown.err
    written = [
        json.loads(line) for line in (tmp_path / "rows.self-chat" / "conversations.jsonl").read_text().splitlines()
    ]
    assert {int(r["id"].split("-")[1]) % 3 == 2 for r in written if r["temperature"]} == {True}
    assert document["num_as_written"] == len(written) == document["sources"][0]["num_records"]
    assert document["num_held_out"] == 2

    again = [
        "prepare",
        "--target",
        str(target),
        "--data",
        f"{tmp_path / 'rows.self-chat'}:2",
        "--out",
        str(tmp_path / "r"),
    ]
    assert main(again) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"  {2 * len(written)} rows of {len(written)} records, weight 2: conversations.jsonl" in lines
    assert f"  {len(written)} records with the very token ids that the target wrote" in lines


def test_without_data_and_without_self_chat_there_is_nothing_to_do(target, tmp_path, capsys):
    assert main(["prepare", "--target", str(target), "--out", str(tmp_path / "rows")]) == 2
    assert "give --data FILE, or --self-chat N" in capsys.readouterr().err


def test_a_recipe_may_hold_lists_and_weights(data, tmp_path, capsys):
    target = save_writing_target(tmp_path / "target")
    recipe = tmp_path / "recipe.json"
    options = {"target": str(target), "data": [f"{data}:2"], "out": str(tmp_path / "rows"), "regenerate": True}
    more = {"answer_temperature": [0, 0.3], "max_answer_tokens": 12, "device": "cpu"}
    recipe.write_text(json.dumps({"prepare": {**options, **more}}))
    assert main(["prepare", "--config", str(recipe), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sources"][0]["weight"] == 2.0
    assert json.loads((tmp_path / "rows.regenerated" / "written.json").read_text())["options"][
        "answer_temperature"
    ] == [0, 0.3]


def test_threads_are_those_of_the_tokenizer_and_of_the_target_that_writes(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RAYON_NUM_THREADS", "2")  # so that it is put back afterwards
    target, before = save_writing_target(tmp_path / "target"), torch.get_num_threads()
    arguments = ["prepare", "--target", str(target), "--out", str(tmp_path / "rows"), "--device", "cpu", *WRITING]
    try:
        assert main([*arguments, "--self-chat", "4", "--threads", "3"]) == 0
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert os.environ["RAYON_NUM_THREADS"] == "3"

    # Threads decide no text: the same job with others finds what was written.
    assert main([*arguments, "--self-chat", "4"]) == 0
    assert "there already" in capsys.readouterr().err


def test_threads_that_no_machine_has_are_refused(target, data, tmp_path, capsys):
    arguments = ["prepare", "--target", str(target), "--data", str(data), "--out", str(tmp_path / "rows")]
    assert main([*arguments, "--threads", "0"]) == 2
    assert "threads = 0, wanted 1 - 1024" in capsys.readouterr().err


def test_something_is_said_before_torch_is_imported(target, data, tmp_path):
    code = """
import sys
from eyas.cli.terminal import Terminal
def line(self, text):
    print("torch" in sys.modules, text)
    sys.exit()
Terminal.line = line
from eyas.cli.app import main
main(sys.argv[1:])
"""
    arguments = ["prepare", "--target", str(target), "--data", str(data), "--out", str(tmp_path / "rows")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.stdout.startswith("False loading torch and transformers"), done.stderr


def test_a_target_without_weights_is_enough_unless_it_has_to_write(target, data, tmp_path, capsys):
    bare = tmp_path / "bare"
    shutil.copytree(target, bare, ignore=shutil.ignore_patterns("*.safetensors"))
    arguments = ["prepare", "--target", str(bare), "--data", str(data), "--out", str(tmp_path / "rows")]
    assert main(arguments) == 0
    assert main([*arguments, "--regenerate", "--replace", "--json"]) == 2
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["code"] == "target-incomplete"


def test_what_the_rows_lack_is_shown_with_the_first_record(target, data, tmp_path, capsys):
    thoughtful = {"role": "assistant", "content": "Yes.", "reasoning_content": "\x1b[2JLong thoughts."}
    data.write_text(json.dumps({"messages": [{"role": "user", "content": "Hi"}, thoughtful]}) + "\n")
    assert main(["prepare", "--target", str(target), "--data", str(data), "--out", str(tmp_path / "rows")]) == 0
    shown = capsys.readouterr().out
    assert (
        f"not in the rows as given: 1 × reasoning of an answer, left out by the chat template (first: {data}:1)"
        in shown
    )
    assert "nothing left out" not in shown


def test_servers_write_without_weights_and_the_key_is_shown_nowhere(target, data, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "no weights"
    shutil.copytree(target, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    monkeypatch.setenv("EYAS_API_KEY", "secret-key")
    with WritingServer(Writer()) as one, WritingServer(Writer()) as two:
        words = ["prepare", "--target", str(folder), "--data", str(data), "--out", str(tmp_path / "rows"), "--json"]
        assert main([*words, "--regenerate", "--url", one.url, "--url", two.url]) == 0
    out, err = capsys.readouterr()

    assert json.loads(out.splitlines()[-1])["num_as_written"] == 2
    assert f"{two.url}: sglang 0.5.15.post1, model tiny" in err
    assert one.keys | two.keys == {"Bearer secret-key"}
    assert "secret-key" not in out + err
    assert b"secret-key" not in b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
