"""What the demo runs and says; that its commands work is shown by running it."""

from pathlib import Path

import pytest

from eyas.cli.app import build_app, main
from eyas.cli.commands.demo import DemoConfig, Step, _run_step, demo_steps


def step_of(command: str) -> Step:
    return next(step for step in demo_steps(DemoConfig(out=Path("made"))) if step.arguments[0] == command)


def test_every_command_of_the_demo_is_one_that_a_user_can_type():
    for step in demo_steps(DemoConfig()):
        build_app().parse_args(list(step.arguments), exit_on_error=False, print_error=False)


def test_the_race_is_short_and_covers_both_kinds_of_text():
    arguments = list(step_of("bench").arguments)
    assert arguments[arguments.index("--max-prompts") + 1] == "4"
    assert arguments[arguments.index("--max-new-tokens") + 1] == "48"


def test_the_check_prints_no_whole_ledger():
    assert "--ledger" not in step_of("check").arguments


def test_what_to_expect_is_said_before_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert "10000 tokens" in step_of("train").hint
    missing = tmp_path / "no-draft"
    step = Step(title="a step", arguments=["header", str(missing)], done=tmp_path / "never", hint="Expect little.")

    with pytest.raises(Exception, match="exit code 2"):
        _run_step("[1/1] a step", step)

    said = capsys.readouterr().err
    assert said.index("$ eyas header") < said.index("Expect little.") < said.index("error[")


def test_an_option_out_of_range_is_told_before_the_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["demo", "--out", str(tmp_path / "run"), "--bench-prompts", "0"]) == 2

    said = capsys.readouterr().err
    assert said.startswith("error[bench-config-invalid]: --max-prompts is 0")
    assert "= note: in a step of the demo: eyas bench" in said
    assert not (tmp_path / "run").exists()
