import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from eyas.cli import app
from eyas.cli.app import COMMANDS, main
from eyas.errors import EyasError


def test_help_lists_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)
    assert "Exit codes: 0 good, 1 findings, 2 usage or config, 3 environment, 4 internal." in shown


def test_an_unknown_command_is_a_usage_error_that_names_the_nearest(capsys: pytest.CaptureFixture[str]):
    assert main(["chekc", "x"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error[usage]: there is no command 'chekc'; did you mean 'check'?\n  --> eyas chekc x\n")


def test_an_unknown_flag_is_a_usage_error_that_names_the_nearest(capsys: pytest.CaptureFixture[str]):
    assert main(["check", "x", "--targett", "y"]) == 2
    assert "--targett" in capsys.readouterr().err


def test_with_json_an_error_is_one_json_object_on_stdout(capsys: pytest.CaptureFixture[str]):
    assert main(["check", "/nowhere/at/all", "--json"]) == 2
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["schema"] == "eyas.error/1"
    assert {"code", "what", "where", "why", "do"} <= set(document)


def test_a_bug_of_ours_is_exit_four_and_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def broken(**_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(app, "build_app", broken)
    assert main(["check", "--json"]) == 4
    shown = capsys.readouterr()
    assert "this is a bug in eyas" in shown.err
    assert json.loads(shown.out)["code"] == "internal"


def test_an_error_survives_pickling():
    import pickle

    error = EyasError("what", "where", "why", "do")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own bytes


@pytest.mark.parametrize(
    ("raised", "code", "name"),
    [
        (KeyboardInterrupt, 130, "interrupted"),
        (MemoryError, 3, "out-of-memory"),
        (torch.OutOfMemoryError, 3, "out-of-memory"),
        (PermissionError, 3, "os-error"),
    ],
)
def test_with_json_every_end_is_one_object(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: type[BaseException],
    code: int,
    name: str,
):
    def broken(**_: object) -> None:
        raise raised

    monkeypatch.setattr(app, "build_app", broken)
    assert main(["check", "--json"]) == code
    shown = capsys.readouterr()
    assert json.loads(shown.out)["code"] == name
    assert "Traceback" not in shown.err


def test_ctrl_c_inside_a_command_is_told_and_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("eyas.contract.files.read_checkpoint.read_checkpoint", interrupted)
    assert main(["header", "x", "--json"]) == 130
    shown = capsys.readouterr()
    assert "run the same command again" in shown.err
    assert json.loads(shown.out)["code"] == "interrupted"


def test_a_command_s_page_shows_its_whole_docstring(capsys: pytest.CaptureFixture[str]):
    assert main(["convert", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "compares what it wrote with the source" in shown
    assert "Every command takes its options from --config FILE too" in shown
    assert "Exit codes: 0 good" in shown


def test_a_page_tells_defaults_but_not_of_switches_that_are_off(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "--help"]) == 0
    assert main(["check", "--help"]) == 0
    defaults = set(re.findall(r"\[default: (.*?)\]", " ".join(capsys.readouterr().out.replace("│", " ").split())))
    assert {"3", "0", "none", "error"} <= defaults  # 0 is no switch
    assert not {"False", "()", '""', ""} & defaults


def shell(command: str) -> subprocess.CompletedProcess[str]:
    eyas = f"{sys.executable} -c 'from eyas.cli.app import run; run()'"
    line = command.replace("eyas", eyas, 1)
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", ["check /nowhere --json", "--help", "check --help", "engines"])
def test_a_reader_that_goes_away_ends_us_quietly(arguments: str):
    done = shell(f"eyas {arguments} | true; echo ${{PIPESTATUS[0]}} >&2")
    assert done.stderr.splitlines()[-1] == "141"
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("buffering", ["PYTHONUNBUFFERED=1", "PYTHONUNBUFFERED="])
@pytest.mark.parametrize("arguments", ["--help", "check --help", "engines", "engines --json"])
def test_an_output_that_cannot_be_written_is_an_error_of_the_environment(arguments: str, buffering: str):
    done = shell(f"export {buffering}; eyas {arguments} >/dev/full")
    assert done.returncode == 3
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("arguments", ["engines", "engines --json"])
def test_an_output_that_was_closed_is_an_error_of_the_environment(arguments: str):
    done = shell(f"eyas {arguments} >&-")
    assert done.returncode == 3
    assert "error[output-lost]: cannot write to stdout\n  --> stdout\n  = why: it is closed" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_error_that_cannot_be_told_is_no_finding():
    assert shell("eyas engine 2>/dev/full").returncode == 3
    closed = shell("eyas engine 2>&-")
    assert (closed.returncode, closed.stdout) == (2, "")


@pytest.mark.parametrize("columns", [0, 1, 2])
def test_a_help_page_ends_in_a_terminal_of_any_width(columns: int):
    done = shell(f"COLUMNS={columns} timeout 30 eyas eval --help")
    assert done.returncode == 0, done.stderr
    assert "--num-draft-tokens" in done.stdout


def test_what_libraries_log_reaches_the_terminal_without_escapes():
    script = (
        "import logging, sys, warnings; from eyas.cli import app; app.main = lambda arguments: (\n"
        "  logging.getLogger('transformers').warning('type %s', '\\x1b]52;c;aGk=\\x07'), warnings.warn('\\x1bc'))\n"
        "app.run()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "type \\u001b]52;c;aGk=\\u0007" in done.stderr
    assert "\\u001bc" in done.stderr
    assert "\x1b" not in done.stderr


def test_what_is_nested_too_deeply_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def deep(**options: object) -> None:
        deep()

    monkeypatch.setattr(app, "build_app", deep)
    assert main(["eval", "x"]) == 2
    assert capsys.readouterr().err.startswith("error[nested-too-deep]: ")


def test_an_output_encoding_without_our_characters_is_no_error():
    done = shell("PYTHONIOENCODING=ascii eyas check --help")
    assert done.returncode == 0, done.stderr


def test_a_package_of_the_torch_extra_that_is_missing_is_the_environments_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def light(**options: object) -> None:
        raise ModuleNotFoundError("No module named 'gguf'", name="gguf.quants")

    monkeypatch.setattr(app, "build_app", light)
    assert main(["eval", "x"]) == 3
    shown = capsys.readouterr().err
    assert shown.startswith("error[extra-missing]: the Python package gguf.quants is not installed")
    assert "pip install 'eyas[torch]'" in shown


def test_a_missing_module_of_our_own_is_a_bug(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def broken(**options: object) -> None:
        raise ModuleNotFoundError("No module named 'eyas.nowhere'", name="eyas.nowhere")

    monkeypatch.setattr(app, "build_app", broken)
    assert main(["eval", "x"]) == 4
