"""`eyas check` from the outside: text, JSON, exit codes; no torch, little memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import damage_matrix
from eyas.cli.app import main


@pytest.fixture
def target(tmp_path):
    return damage_matrix.write_target(tmp_path / "target")


def _draft(row, tmp_path):
    return damage_matrix.write(damage_matrix.build(row), tmp_path / row)


def test_a_healthy_draft_exits_0_and_prints_the_launch(tmp_path, target, capsys):
    draft = _draft("intact", tmp_path)

    code = main(["check", str(draft), "--target", str(target), "--for", "sglang==0.5.23", "-k", "4"])

    text = capsys.readouterr().out
    assert code == 0
    assert "sglang==0.5.23         ok" in text
    assert "--speculative-num-steps 4" in text


def test_the_missions_draft_exits_1_with_the_command_that_fixes_it(tmp_path, target, capsys):
    draft = _draft("intact-layers0", tmp_path)

    code = main(["check", str(draft), "--target", str(target), "--for", "sglang==0.5.9"])

    text = capsys.readouterr().out
    assert code == 1
    assert "SILENT DAMAGE" in text
    assert f"eyas convert {draft} --to sglang OUT" in text


def test_the_fix_that_is_printed_works(tmp_path, target, capsys):
    draft, out = _draft("intact-layers0", tmp_path), tmp_path / "fixed"

    assert main(["convert", str(draft), str(out), "--to", "sglang", "--target", str(target)]) == 0
    code = main(["check", str(out), "--target", str(target), "--for", "sglang==0.5.9", "--for", "sglang==0.5.23"])

    assert code == 0, capsys.readouterr().out


def test_json_is_the_last_line_and_follows_the_schema_page(tmp_path, target, capsys):
    draft = _draft("intact-layers0", tmp_path)
    engines = ["--for", "sglang==0.5.9", "--for", "vllm==0.33.0"]

    code = main(["check", str(draft), "--target", str(target), *engines, "--json"])

    captured = capsys.readouterr()
    document = json.loads(captured.out.splitlines()[-1])
    assert code == 1
    assert document["schema"] == "eyas.check/1"
    assert document["ok"] is False
    assert document["engines"]["sglang==0.5.9"]["verdict"] == "silent-damage"
    assert len(document["engines"]["sglang==0.5.9"]["dropped"]) == 10
    assert document["engines"]["vllm==0.33.0"]["other_runner"]["verdict"] == "silent-damage"
    page = (Path(__file__).resolve().parents[3] / "docs" / "check-schema.md").read_text()
    undocumented = [k for k in [*document, *document["engines"]["sglang==0.5.9"]] if f"`{k}" not in page]
    assert undocumented == []


def test_fail_on_moves_the_threshold(tmp_path, target):
    draft = _draft("aux-plus-one", tmp_path)
    command = ["check", str(draft), "--target", str(target), "--for", "sglang==0.5.23"]

    assert main([*command, "--fail-on", "fatal"]) == 0
    assert main([*command, "--fail-on", "warning"]) == 1


def test_without_its_flag_the_ledger_is_a_line_of_counts(tmp_path, target, capsys):
    draft = _draft("missing-q", tmp_path)

    main(["check", str(draft), "--target", str(target), "--for", "sglang==0.5.23"])

    out = capsys.readouterr().out
    [line] = [line for line in out.splitlines() if line.startswith("ledger of sglang==0.5.23 (--ledger lists it): ")]
    tensors, parameters, keys = line.split("): ")[1].split("; ")
    assert tensors.startswith(f"{len(damage_matrix.build('missing-q').tensors)} tensors: ")
    assert "1 partly" in parameters
    assert "config keys: " in keys
    assert "runtime parameters" not in out


def test_the_ledger_lists_every_tensor_and_parameter(tmp_path, target, capsys):
    draft = _draft("missing-q", tmp_path)

    main(["check", str(draft), "--target", str(target), "--for", "sglang==0.5.23", "--ledger"])

    text = capsys.readouterr().out
    assert all(name in text for name in damage_matrix.build("missing-q").tensors)
    assert "q_proj missing" in text


def test_an_unknown_version_is_a_usage_error_and_nearest_answers(tmp_path, target, capsys):
    draft = _draft("intact", tmp_path)
    command = ["check", str(draft), "--target", str(target), "--for", "vllm==0.99.0"]

    assert main(command) == 2
    assert "error[engine-version-unknown]" in capsys.readouterr().err
    assert main([*command, "--nearest"]) == 0
    assert "engine-approximated" in capsys.readouterr().out


def test_a_header_dump_is_judged_like_the_folder(tmp_path, target, capsys):
    draft = _draft("missing-d2t", tmp_path)
    main(["header", str(draft)])
    dump = tmp_path / "dump.json"
    dump.write_text(capsys.readouterr().out)

    code = main(["check", str(dump), "--target", str(target / "config.json"), "--for", "sglang==0.5.23", "--json"])

    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 1
    assert document["engines"]["sglang==0.5.23"]["unfilled"] == ["hot_token_id"]


def test_check_imports_neither_torch_nor_numpy_and_stays_small(tmp_path, target):
    draft = _draft("intact", tmp_path)
    arguments = ["check", str(draft), "--target", str(target), "--for", "sglang==0.5.23", "--for", "vllm==0.33.0"]
    script = (
        "import re, sys\n"
        "from eyas.cli.app import main\n"
        f"code = main({arguments!r})\n"
        "heavy = sorted(m for m in ('torch', 'transformers', 'numpy') if m in sys.modules)\n"
        # not ru_maxrss: a child starts with the peak of the process that started it
        "peak = int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "print(code, heavy, peak // 1024)\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    code, rest = done.stdout.splitlines()[-1].split(" ", 1)
    heavy, megabytes = rest.rsplit(" ", 1)
    assert code == "0"
    assert heavy == "[]"
    assert int(megabytes) < 150


@pytest.mark.parametrize("depth", ["0", "-1", "9999999", "x"])
def test_a_depth_that_no_launch_takes_is_refused(tmp_path, capsys, depth):
    assert main(["check", str(_draft("intact", tmp_path)), "--for", "sglang==0.5.23", "-k", depth]) == 2
    assert "error[usage]" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["sglang==0.5.23", "vllm==0.33.0"])
def test_without_a_target_an_ok_says_that_the_fit_is_not_judged(tmp_path, target, capsys, engine):
    command = ["check", str(_draft("intact", tmp_path)), "--for", engine]

    assert main(command) == 0
    alone = capsys.readouterr().out
    assert main([*command, "--target", str(target)]) == 0
    with_target = capsys.readouterr().out

    assert "the target is unknown, so whether they fit is not judged" in alone
    assert "computes what was trained" not in alone
    assert "computes what was trained" in with_target


def test_a_launch_that_would_be_damaged_has_no_flags_to_copy(tmp_path, target, capsys):
    """Neither in the text nor in the document, which says why; an engine that serves the draft well has them."""
    engines = ["--for", "sglang==0.5.9", "--for", "sglang==0.5.23"]

    assert main(["check", str(_draft("intact-layers0", tmp_path)), "--target", str(target), *engines, "--json"]) == 1

    shown = capsys.readouterr()
    damaged, sound = json.loads(shown.out)["engines"].values()
    assert shown.err.count("--speculative-draft-model-path") == 1
    assert "launch on sglang==0.5.9: no flags to copy, this would be served damaged" in shown.err
    assert damaged["launch"] is None
    assert "parameters-unfilled" in damaged["launch_withheld"]
    assert "--speculative-draft-model-path" in sound["launch"]["flags"]
    assert sound["launch_withheld"] is None


def test_a_runner_that_no_engine_asked_for_has_is_told(tmp_path, capsys):
    for engine in ("sglang==0.5.23", "vllm==0.33.0"):
        main(["check", "--draft", str(_draft("intact", tmp_path / engine)), "--runner", "v1", "--for", engine])
        assert ("note: --runner v1: no effect" in capsys.readouterr().err) == engine.startswith("sglang")


def test_findings_of_one_cause_are_one_block_and_all_in_json(tmp_path, target, capsys):
    build = damage_matrix.build("intact")
    for i in range(20):
        build.add(f"optimizer.state_{i:02}", 7)
    draft = damage_matrix.write(build, tmp_path / "draft")

    assert main(["check", str(draft), "--target", str(target), "--json"]) == 1

    captured = capsys.readouterr()
    assert captured.err.count("error[tensor-unknown]") == 1
    assert captured.err.count("no EAGLE-3 draft that eyas knows has it") == 1
    assert "    - unknown tensor optimizer.state_11 BF16 [7]\n    - and 8 more\n" in captured.err
    assert "20 errors" in captured.err
    findings = json.loads(captured.out.splitlines()[-1])["findings"]
    assert sum(f["code"] == "tensor-unknown" for f in findings) == 20


@pytest.mark.parametrize(
    ("row", "keys", "engine"),
    [
        ("aux-plus-one", {}, "sglang==0.5.23"),
        ("intact", {"rope_theta": None, "rope_parameters": {"rope_theta": 1e5}}, "sglang==0.5.9"),
        ("intact", {"sliding_window": 64, "layer_types": ["sliding_attention"]}, "sglang==0.5.9"),
    ],
)
def test_a_silent_damage_exits_1_however_mild(tmp_path, target, capsys, row, keys, engine):
    draft = damage_matrix.build(row)
    draft.config = {k: v for k, v in (draft.config | keys).items() if v is not None}
    folder = damage_matrix.write(draft, tmp_path / "draft")
    words = ["check", str(folder), "--target", str(target), "--for", engine, "--json"]

    codes = [main(words), main([*words, "--fail-on", "fatal"])]

    document = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (document["engines"][engine]["verdict"], document["engines"][engine]["severity"]) == (
        "silent-damage",
        "mild",
    )
    assert document["ok"] is False
    assert codes == [1, 0]
