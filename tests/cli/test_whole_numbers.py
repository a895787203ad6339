"""An option that counts takes no fraction: cyclopts itself would round it."""

import pytest

from eyas.cli.app import main


@pytest.mark.parametrize(
    "arguments",
    [
        ["eval", "draft", "--target", "t", "-k", "1.5"],
        ["eval", "draft", "--target", "t", "--num-draft-tokens=1.5"],
        ["eval", "draft", "--target", "t", "--max-rows", "1.5"],  # may be None
        ["prepare", "--target", "t", "--data", "d", "--out", "o", "--max-length", "99.5"],
        ["train", "--target", "t", "--data", "d", "--out", "o", "--aux-boundaries", "1", "2.5", "3"],
        ["bench", "--target", "t", "--draft", "d", "--repeats", "1e999."],
        ["bench", "--target", "t", "--draft", "d", "--repeats", "2.5"],
    ],
)
def test_a_fraction_is_a_usage_error_that_names_option_and_value(arguments, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error[usage]: -")
    assert "takes a whole number, not " in said.splitlines()[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ["eval", "draft", "--target", "t", "--max-rows", "٣"],
        ["train", "--target", "t", "--data", "d", "--out", "o", "--lr", "٠.٥"],
        ["train", "--target", "t", "--data", "d", "--out", "o", "--steps", "²"],
        ["bench", "--target", "t", "--draft", "d", "-k", "٣"],
        ["bench", "--target", "t", "--draft", "d", "--tree", "٣x٣x٧"],
        ["watch", "²"],
        ["watch", "localhost:²"],
        ["watch", "localhost:٨٠"],
    ],
)
def test_digits_of_other_scripts_are_refused(arguments, capsys):
    assert main(arguments) == 2
    assert "error[" in capsys.readouterr().err


def test_an_option_that_is_no_count_may_hold_a_point(tmp_path, capsys):
    # the float, the path with a point in it and the list of depths (text) all pass; what is missing is the target
    rest = ["--target", str(tmp_path / "t.1"), "--out", str(tmp_path / "o.1")]
    assert main(["train", *rest, "--data", "d.1", "--lr", "0.5"]) == 2
    assert main(["bench", *rest, "--draft", "d.1", "-k", "1..3"]) == 2
    assert "whole number" not in capsys.readouterr().err


def test_a_recipe_is_held_to_the_same(tmp_path, capsys):
    recipe = tmp_path / "r.json"
    recipe.write_text('{"prepare": {"max_length": 99.5}}')
    assert main(["prepare", "--config", str(recipe), "--target", "t", "--data", "d", "--out", "o"]) == 2
    assert "--max-length takes a whole number, not 99.5" in capsys.readouterr().err
