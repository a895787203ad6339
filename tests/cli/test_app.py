import json

import pytest

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
    def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(app, "build_app", broken)
    assert main(["check"]) == 4
    assert "this is a bug in eyas" in capsys.readouterr().err


def test_an_error_survives_pickling():
    import pickle

    error = EyasError("what", "where", "why", "do")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own bytes
