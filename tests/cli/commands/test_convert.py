"""`eyas convert`: what it prints, what it writes, and its exit codes."""

import json
from pathlib import Path

import pytest

from drafts import write_draft, write_target
from eyas.cli.app import main


def last_json(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert isinstance(document, dict)
    return document


def test_a_conversion_sums_up_the_renames_and_writes_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    draft, target = write_draft(tmp_path / "draft", names="midlayer"), write_target(tmp_path / "target")
    (draft / "README.md").write_text("a card")

    code = main(["convert", str(draft), "--to", "speculators", str(tmp_path / "out"), "--target", str(target)])

    assert code == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1:5] == [
        "to speculators: 16 tensors, 12.8 kB",
        "  midlayer.* -> layers.0.*: 10",
        "  target: model.embed_tokens.weight  ->  embed_tokens.weight  BF16 [64, 16]",
        "  name kept: 5 (--dry-run lists every tensor)",
    ]
    assert "not copied: README.md" in out
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["config.json", "eyas.json", "model.safetensors"]


def test_json_names_what_was_recognised_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    draft = write_draft(tmp_path / "draft")
    assert main(["convert", str(draft), str(tmp_path / "out"), "--to", "sglang", "--json"]) == 0
    document = last_json(capsys)
    assert (document["schema"], document["from"], document["to"]) == ("eyas.convert/1", "vllm", "sglang")
    assert document["evidence"]
    assert document["fingerprint"]


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    draft = write_draft(tmp_path / "draft")
    assert main(["convert", str(draft), str(tmp_path / "out"), "--to", "sglang", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "nothing was written" in out
    moved = [line.split() for line in out.splitlines() if "self_attn.q_proj.weight" in line]
    assert moved == [
        ["layers.0.self_attn.q_proj.weight", "->", "midlayer.self_attn.q_proj.weight", "BF16", "[32,", "32]"]
    ]
    assert not (tmp_path / "out").exists()


def test_a_loss_is_exit_one_and_names_the_switch_and_the_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    draft = write_draft(tmp_path / "draft", residual=True)
    assert main(["convert", str(draft), str(tmp_path / "out"), "--to", "sglang"]) == 1
    message = capsys.readouterr().err
    assert "error[conversion-refused]: sglang cannot hold this draft" in message
    assert "[loss-residual] residual: SGLang has no norm_before_residual" in message
    assert "--allow loss-residual" in message

    arguments = ["convert", str(draft), str(tmp_path / "out"), "--to", "sglang", "--allow", "loss-residual"]
    assert main(arguments) == 0
    assert "allowed [loss-residual]" in capsys.readouterr().out


def test_a_damaged_draft_is_exit_one_with_all_its_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    draft = write_draft(tmp_path / "draft", extra_config={"foo": 1, "norm_output": 3})
    assert main(["convert", str(draft), str(tmp_path / "out"), "--to", "sglang"]) == 1
    message = capsys.readouterr().err
    assert "[config-key-unknown]" in message
    assert "[config-value-invalid]" in message


def test_an_unknown_format_is_a_usage_error_with_the_known_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["convert", str(write_draft(tmp_path / "draft")), str(tmp_path / "out"), "--to", "onnx"]) == 2
    assert "speculators" in capsys.readouterr().err


def test_llama_cpp_is_answered_with_its_own_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    draft = write_draft(tmp_path / "draft", norm_output=True)
    assert main(["convert", "--draft", str(draft), "--to", "llama.cpp", "--json", "--allow", "x", "--replace"]) == 0
    shown = capsys.readouterr()
    assert "note: --allow, --replace: no effect" in shown.err
    document = json.loads(shown.out)
    assert "convert_hf_to_gguf.py" in str(document["commands"])
    assert main(["convert", str(draft), "OUT", "--to", "llama.cpp"]) == 0
    assert "--outfile OUT.gguf\n" in capsys.readouterr().out
    assert any("3.1" in str(need) for need in document["needs"])  # type: ignore[attr-defined]


def test_an_output_that_is_there_is_kept_unless_replace(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    draft = write_draft(tmp_path / "draft")
    (tmp_path / "out").mkdir()
    assert main(["convert", str(draft), str(tmp_path / "out"), "--to", "sglang"]) == 2
    message = capsys.readouterr().err
    assert "output-exists" in message
    assert "`--replace` overwrites OUT" in message
    assert main(["convert", str(draft), str(tmp_path / "out"), "--to", "sglang", "--replace"]) == 0


def test_no_room_is_said_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("eyas.contract.convert.conversion_apply.free_bytes_missing", lambda plan, out: 5_000_000)
    assert main(["convert", str(write_draft(tmp_path / "draft")), str(tmp_path / "out"), "--to", "sglang"]) == 3
    assert "5 MB are missing" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_replace_never_deletes_what_eyas_did_not_write_nor_the_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    home = tmp_path / "home"
    draft = write_draft(home / "draft")
    (home / "thesis.txt").write_text("work")
    before = sorted(path.name for path in home.rglob("*"))
    for out in (home, draft):
        assert main(["convert", str(draft), str(out), "--to", "vllm", "--replace"]) == 2
        assert "holds the source model.safetensors" in capsys.readouterr().err
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes").write_text("work")
    assert main(["convert", str(draft), str(other), "--to", "vllm", "--replace"]) == 2
    assert "there is no eyas.json in it" in capsys.readouterr().err
    assert sorted(path.name for path in home.rglob("*")) == before
    assert (other / "notes").read_text() == "work"


def test_without_out_nothing_is_done_and_that_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["convert", str(write_draft(tmp_path / "draft")), "--to", "vllm"]) == 2
    assert "error[out-missing]" in capsys.readouterr().err


def test_an_allow_that_nothing_needs_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    draft = write_draft(tmp_path / "draft")
    assert main(["convert", str(draft), "--to", "sglang", "--dry-run", "--allow", "loss-typo"]) == 0
    assert "--allow loss-typo: no finding has this code" in capsys.readouterr().err


def test_an_output_name_that_no_disk_takes_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    draft = write_draft(tmp_path / "draft")
    assert main(["convert", str(draft), str(tmp_path / ("a" * 300) / "b"), "--to", "sglang"]) == 3
    assert "error[write-failed]" in capsys.readouterr().err
