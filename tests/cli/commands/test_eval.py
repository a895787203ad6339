import json
import subprocess
import sys
from pathlib import Path

import pytest

from eyas import __version__
from eyas.cli.app import main
from eyas.contract.spec.target_spec import read_target
from eyas.decode.accept_length import Acceptance
from eyas.models.save_draft import save_draft
from eyas.replay.eval_config import EvalConfig, EvalConfigInvalid
from eyas.replay.figures import meaning
from plain_loop import plain_loop
from tiny_draft import tiny_draft
from tiny_target import tiny_target
from tiny_tokenizer import tiny_tokenizer


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with `target`, `draft`, `rows.jsonl` (recorded) and `prompts.jsonl`."""
    root = tmp_path_factory.mktemp("made")
    model = tiny_target(seed=5)
    model.generation_config.eos_token_id = 2
    model.save_pretrained(root / "target")
    tiny_tokenizer().save_pretrained(root / "target")
    draft = tiny_draft(
        hidden_size=32, target_hidden_size=32, vocab_size=64, draft_vocab_size=64, embedding="target", head="target"
    )
    save_draft(draft, root / "draft", target_spec=read_target(root / "target"))
    own = tiny_draft(hidden_size=32, target_hidden_size=32, vocab_size=64, draft_vocab_size=60, embedding="target")
    save_draft(own, root / "draft-own", target_spec=read_target(root / "target"))
    rows = []
    for i, first in enumerate((7, 9, 11)):
        text, _ = plain_loop(model, draft, [1, first], 1, 20)
        rows.append({"id": f"r{i}", "set": ["even", "odd"][i % 2], "prompt_ids": text[:2], "response_ids": text[2:]})
    (root / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    prompts = [{"messages": [{"role": "user", "content": f"w{i} w{i + 1}"}]} for i in range(3)]
    (root / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    return root


def run(capsys, made: Path, *more: str) -> tuple[int, dict, str]:
    code = main(["eval", str(made / "draft"), "--target", str(made / "target"), "--device", "cpu", "--json", *more])
    out, err = capsys.readouterr()
    return code, json.loads(out.splitlines()[-1]), err


def test_the_document_has_every_figure_and_the_figures_agree(made, capsys):
    code, document, err = run(capsys, made, "--data", str(made / "rows.jsonl"), "-k", "3")

    assert (code, document["schema"]) == (0, "eyas.eval/1")
    requests = [Acceptance.of_rounds(row["accepted"], 3) for row in document["rows"]]
    assert document["rounds"] == sum(r.rounds for r in requests)
    assert document["num_tokens"] == sum(r.num_tokens for r in requests)
    assert document["accept_length"] == document["num_tokens"] / document["rounds"]
    assert document["accept_length_request_mean"] == pytest.approx(sum(r.accept_length for r in requests) / 3)
    assert document["per_position"][0] == document["accepted_at"][0] / document["rounds"]
    assert list(document["sets"]) == ["even", "odd"]
    assert sum(s["rounds"] for s in document["sets"].values()) == document["rounds"]
    assert len(document["per_position"]) == len(document["per_position_conditional"]) == 3
    assert document["draft"]["aux_boundaries"] == [1, 2, 3]
    assert document["data"]["num_response_tokens"] == 60
    assert "accepted at position 1 … 3 (joint)" in err


def test_nothing_accepted_is_told_in_the_notes_too(made, capsys, tmp_path):
    rows = tmp_path / "rows.jsonl"
    # Ids 60 … 63 are not in the draft's vocabulary of 60.
    rows.write_text(json.dumps({"prompt_ids": [1, 7], "response_ids": [60, 61, 62, 63] * 4}))
    code = main(
        [
            "eval",
            str(made / "draft-own"),
            "--target",
            str(made / "target"),
            "--device",
            "cpu",
            "--json",
            "--data",
            str(rows),
        ]
    )
    out, err = capsys.readouterr()
    document = json.loads(out.splitlines()[-1])
    assert (code, document["accept_length"]) == (0, 1.0)
    (note,) = (note for note in document["notes"] if note.startswith("nothing is accepted"))
    assert f"note: {note}" in err
    assert "`eyas infer DRAFT --target T`" in note


def test_answers_that_repeat_themselves_are_left_out_of_the_second_figure(made, capsys, tmp_path):
    rows = [
        {"id": "new", "set": "a", "prompt_ids": [1, 7], "response_ids": [*range(10, 30)]},
        {"id": "old", "set": "a", "prompt_ids": [1, 9], "response_ids": [5, 6] * 10},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))

    _, document, err = run(capsys, made, "--data", str(tmp_path / "rows.jsonl"))

    kept = document["not_repetitive"]
    new = next(row["accepted"] for row in document["rows"] if row["id"] == "new")
    assert (document["num_requests"], kept["num_requests"], kept["limit"]) == (2, 1, 0.25)
    assert kept["accept_length"] == Acceptance.of_rounds(new, 3).accept_length == kept["sets"]["a"]["accept_length"]
    assert "without 1 answers that repeat themselves" in err


def test_prompts_are_answered_first_and_the_saved_rows_give_the_same_again(made, capsys, tmp_path):
    saved = tmp_path / "saved.jsonl"
    _, first, err = run(
        capsys, made, "--data", str(made / "prompts.jsonl"), "--max-new-tokens", "12", "--save-rows", str(saved)
    )

    _, again, _ = run(capsys, made, "--data", str(saved))

    assert "3 of 3 rows are prompts without an answer: the target answers them greedily\n" in err
    assert [row["accepted"] for row in first["rows"]] == [row["accepted"] for row in again["rows"]]
    assert first["data"]["fingerprint"] == again["data"]["fingerprint"]
    rows = [json.loads(line) for line in saved.read_text().splitlines()]
    assert rows[0]["prompt_ids"] == [1, 4, 7, 8, 2, 5]
    assert all(2 not in row["response_ids"][:-1] and len(row["response_ids"]) <= 12 for row in rows)


def test_of_a_given_answer_it_is_said_why_it_is_not_used_and_how_answers_are_kept(made, capsys, tmp_path):
    user, answer = {"role": "user", "content": "w1 w2"}, {"role": "assistant", "content": "w3"}
    records = [{"messages": [user, answer]}, {"messages": [user, answer, user]}, {"messages": [user, answer]}]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, records)))

    _, document, err = run(capsys, made, "--data", str(tmp_path / "mine.jsonl"), "--max-new-tokens", "4")

    note = next(line for line in err.splitlines() if line.startswith("note: 1 of 3"))
    assert note.removeprefix("note: ") in document["notes"]
    assert (
        "1 of 3 rows are prompts without an answer; 2 of 3 rows are conversations whose last answer is not used ("
        in note
    )
    assert "accept length is measured on what the target itself writes" in note
    assert "--save-rows FILE keeps its answers" in note
    assert err.index(note) < err.index("the target answers 3 prompts"), "said before the work, not after it"


def test_prompts_are_answered_many_at_a_time(made, capsys, tmp_path, monkeypatch):
    from eyas.engine.batches.generator import BatchGenerator

    together, prefill = [], BatchGenerator._prefill

    def counted(self, requests, rows):
        together.append(len(requests))
        return prefill(self, requests, rows)

    monkeypatch.setattr(BatchGenerator, "_prefill", counted)
    _, _, err = run(capsys, made, "--data", str(made / "prompts.jsonl"), "--max-new-tokens", "4")
    assert together == [3]
    assert "3 sequences at a time" in err


def test_a_draft_that_cannot_be_read_is_told_before_the_target_writes(made, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("eyas.replay.evaluate.answer_prompts", lambda *_: pytest.fail("it was asked"))
    arguments = ["eval", str(tmp_path), "--target", str(made / "target"), "--data", str(made / "prompts.jsonl")]
    assert main(arguments) == 2
    assert "error[checkpoint-empty]" in capsys.readouterr().err


def test_of_a_folder_of_rows_those_held_out_are_taken(made, capsys, tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    exit_code, document, err = run(capsys, made, "--data", str(folder))
    assert (exit_code, document["code"]) == (2, "eval-data-missing")
    assert f"{folder} is a folder without held_out.jsonl" in err
    assert "eyas prepare --held-out N" in err

    (folder / "held_out.jsonl").write_text((made / "rows.jsonl").read_text())
    exit_code, document, err = run(capsys, made, "--data", str(folder))
    assert exit_code == 0
    assert f"{folder} is a folder of rows: taking those that were held out, {folder / 'held_out.jsonl'}" in err
    assert document["data"]["paths"] == [str(folder / "held_out.jsonl")]
    assert document["num_requests"] == 3


def test_answers_are_the_model_s_own_greedy_generation(made, capsys, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    saved = tmp_path / "saved.jsonl"
    run(capsys, made, "--data", str(made / "prompts.jsonl"), "--max-new-tokens", "12", "--save-rows", str(saved))

    model = AutoModelForCausalLM.from_pretrained(made / "target", dtype=torch.float32)
    for row in map(json.loads, saved.read_text().splitlines()):
        prompt = torch.tensor([row["prompt_ids"]])
        whole = model.generate(prompt, max_new_tokens=12, do_sample=False, eos_token_id=2, pad_token_id=0)
        assert whole[0, prompt.shape[1] :].tolist() == row["response_ids"]


def test_max_rows_and_out_are_heeded(made, capsys, tmp_path):
    out = tmp_path / "eval.json"

    _, document, _ = run(capsys, made, "--data", str(made / "rows.jsonl"), "--max-rows", "2", "--out", str(out))

    assert len(document["rows"]) == 2
    assert json.loads(out.read_text())["accept_length"] == document["accept_length"]


def test_without_json_the_table_is_on_stdout(made, capsys):
    main(["eval", str(made / "draft"), "--target", str(made / "target"), "--data", str(made / "rows.jsonl"), "-k", "2"])

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("set   rows  rounds  accept length  request mean  accepted at position 1 … 2 (joint)")
    assert [line.split()[0] for line in lines[1:4]] == ["even", "odd", "all"]
    assert lines[4].startswith("each position given that all before it were accepted:")


def test_rows_without_a_round_give_no_figure_rather_than_a_wrong_one(made, capsys, tmp_path):
    rows, out = tmp_path / "short.jsonl", tmp_path / "eval.json"
    rows.write_text('{"prompt_ids": [1, 7], "response_ids": [2]}')

    code, document, err = run(capsys, made, "--data", str(rows), str(made / "rows.jsonl"), "--out", str(out))

    assert code == 0
    short = document["sets"]["short"]
    assert (short["rounds"], short["accept_length"], short["per_position"]) == (0, None, [None] * 3)
    assert json.loads(out.read_text(), parse_constant=pytest.fail)["sets"]["short"] == short
    assert "1 rows are left out: one recorded token makes no round" in err


@pytest.mark.parametrize("command", ["eval", "infer"])
def test_data_without_a_single_round_is_refused(made, capsys, tmp_path, command):
    rows = tmp_path / "short.jsonl"
    rows.write_text('{"prompt_ids": [1, 7], "response_ids": [2]}')

    code = main([command, str(made / "draft"), "--target", str(made / "target"), "--data", str(rows)])

    assert code == 2
    assert "error[eval-data-empty]: there is no round to replay" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--data", "nothing.jsonl"], "eval-data-missing"),
        (["-k", "0"], "eval-config-invalid"),
        (["--max-new-tokens", "1"], "eval-config-invalid"),
    ],
)
def test_a_wrong_option_is_an_error_of_usage_with_its_code(made, capsys, arguments, code):
    exit_code, document, _ = run(capsys, made, *arguments)

    assert (exit_code, document["code"]) == (2, code)


def test_all_wrong_options_are_told_at_once():
    with pytest.raises(EvalConfigInvalid, match=r"--num-draft-tokens is 40.*--threads is 0"):
        EvalConfig(num_draft_tokens=40, threads=0)
    with pytest.raises(EvalConfigInvalid, match="--threads is 100000"):  # torch would end the process
        EvalConfig(threads=100_000)


def test_a_target_without_a_chat_template_cannot_be_asked(made, capsys, tmp_path):
    tiny_target(seed=5).save_pretrained(tmp_path / "target")

    code = main([
        *["eval", str(made / "draft"), "--target", str(tmp_path / "target"), "--data", str(made / "prompts.jsonl")],
        "--json",
    ])  # fmt: skip

    assert (code, json.loads(capsys.readouterr().out)["code"]) == (2, "tokenizer-unusable")


def test_a_pack_written_is_evaluated_without_a_target(made, capsys, tmp_path):
    pack = str(tmp_path / "pack")
    _, first, err = run(capsys, made, "--data", str(made / "rows.jsonl"), "--write-probe", pack)

    code = main(["eval", str(made / "draft-own"), "--probe", pack, "--device", "cpu", "--json"])
    document = json.loads(capsys.readouterr().out.splitlines()[-1])

    assert "states at boundaries 1, 2, 3" in err
    assert code == 0
    assert document["data"]["fingerprint"] == first["data"]["fingerprint"]


@pytest.mark.parametrize("more", [["--target", "t", "--probe", "p"], [], ["--probe", "p", "--data", "d"]])
def test_one_source_of_states_is_wanted(made, capsys, more):
    code = main(["eval", str(made / "draft"), *more, "--json"])

    assert (code, json.loads(capsys.readouterr().out)["code"]) == (2, "eval-wants-one-source")


@pytest.mark.parametrize(("command", "named"), [("eval", "--data, --save-rows, --write-probe"), ("infer", "--data")])
def test_where_states_come_from_is_asked_in_the_commands_own_options(capsys, command, named):
    assert main([command, "draft", "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert (said["where"], said["why"]) == (
        f"eyas {command}",
        f"it takes --target T (with {named}), or --probe PACK alone",
    )


def test_every_form_that_prepare_reads_is_asked_and_what_cannot_be_is_named(made, capsys, tmp_path):
    user, call = {"role": "user", "content": "w1"}, {"role": "assistant", "content": None, "tool_calls": []}
    records = [
        {"conversations": [{"from": "human", "value": "w1"}, {"from": "gpt", "value": "w2"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in ("w1", "w2")]}, call]},
        {"prompt": "w3"},
        {"request": {"messages": [user]}, "response": {"choices": []}},
        {"messages": [{"role": "assistant", "content": "w1"}]},
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
    ]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, records)))

    code, document, err = run(capsys, made, "--data", str(tmp_path / "mine.jsonl"), "--max-new-tokens", "4")

    assert (code, [row["id"] for row in document["rows"]]) == (0, [f"mine:{n}" for n in (1, 2, 3, 4)])
    assert (
        f"rows left out: 1 × no user turn (first: {tmp_path}/mine.jsonl:5), 1 × a turn whose content is not text" in err
    )


def test_a_prompt_that_the_template_refuses_is_left_out_and_named(made, capsys, tmp_path):
    import shutil

    target = tmp_path / "target"
    shutil.copytree(made / "target", target)
    refuses = "{% for m in messages %}{% if m.content == 'w5' %}{{ raise_exception('no w5') }}{% endif %}{% endfor %}"
    for path in target.glob("*template*"):
        path.write_text(refuses + path.read_text())
    rows = [{"messages": [{"role": "user", "content": f"w{i}"}]} for i in (4, 5, 6)]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arguments = ["eval", str(made / "draft"), "--target", str(target), "--max-new-tokens", "4", "--json", "--data"]

    assert main([*arguments, str(tmp_path / "p.jsonl")]) == 0
    out, err = capsys.readouterr()
    assert [row["id"] for row in json.loads(out)["rows"]] == ["p:1", "p:3"]
    assert "1 of 3 prompts are left out, the chat template refuses them: row p:2: TemplateError: no w5" in err

    (tmp_path / "p.jsonl").write_text(json.dumps(rows[1]))
    assert main([*arguments, str(tmp_path / "p.jsonl")]) == 2
    assert json.loads(capsys.readouterr().out)["code"] == "template-failed"


@pytest.mark.parametrize(
    ("length", "k", "said"),
    [
        (1.19, 3, "accept length 1.19 of at most 4: nearly nothing is accepted; healthy drafts reach 2 - 3.5"),
        (2.4, 5, "of at most 6: as healthy drafts have it"),
        (1.7, 3, "a weak draft"),
        (1.7, 1, "accept length 1.70 of at most 2"),
        (None, 3, ""),
    ],
)
def test_a_figure_is_said_with_what_it_means(length, k, said):
    assert said in meaning(length, k)


def test_a_source_tree_without_metadata_gives_its_version(made, tmp_path):
    """`PYTHONPATH=src`: no installed package to ask."""
    code = f"""
import importlib.metadata as m
known = m.version
def version(name):
    if name == "eyas":
        raise m.PackageNotFoundError(name)
    return known(name)
m.version = version
from eyas.cli.app import main
raise SystemExit(main(["eval", {str(made / "draft")!r}, "--target", {str(made / "target")!r}, "--data",
    {str(made / "rows.jsonl")!r}, "--device", "cpu", "--json"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["settings"]["versions"]["eyas"] == __version__


def test_rows_beyond_the_targets_context_are_named(made, capsys, tmp_path):
    import shutil

    target = tmp_path / "target"
    shutil.copytree(made / "target", target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 20}))
    arguments = ["eval", str(made / "draft"), "--target", str(target), "--data", str(made / "rows.jsonl"), "--json"]

    assert main(arguments) == 0
    (note,) = (n for n in json.loads(capsys.readouterr().out)["notes"] if "context" in n)
    assert note.startswith("3 rows are longer than the target's context of 20 tokens (longest: 22)")
