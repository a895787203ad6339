import json
from pathlib import Path

import pytest

from eyas.cli.app import build_app, main
from eyas.cli.recipe_file import RecipeKeyUnknown, RecipeUnreadable, with_recipe

YAML = """
prepare:
  target: smollm2-135m
  data: [a.jsonl, b.jsonl]
train:
  target: smollm2-135m
  batch_tokens: 512
  lr: 2e-3
  init-only: true
  restart: false
  steps: null
"""
TOML = '[train]\ntarget = "smollm2-135m"\nbatch-tokens = 512\nlr = 2e-3\ninit-only = true\nrestart = false\n'
AS_ARGUMENTS = ["--target", "smollm2-135m", "--batch-tokens", "512", "--lr", "2e-3", "--init-only"]


def expand(path: Path, *arguments: str) -> list[str]:
    command, *rest = arguments
    return with_recipe([command, "--config", str(path), *rest], build_app())


def test_the_section_of_the_command_becomes_its_options(tmp_path: Path):
    path = tmp_path / "r.yaml"
    path.write_text(YAML)
    assert expand(path, "train", "--out", "d") == ["train", *AS_ARGUMENTS, "--out", "d"]
    assert expand(path, "prepare") == [
        *["prepare", "--target", "smollm2-135m", "--data", "a.jsonl", "--data", "b.jsonl"],
    ]


@pytest.mark.parametrize(("suffix", "text"), [(".toml", TOML), (".json", json.dumps({"train": {"lr": 0.002}}))])
def test_toml_and_json_are_read_as_well(tmp_path: Path, suffix, text):
    path = tmp_path / f"r{suffix}"
    path.write_text(text)
    expanded = expand(path, "train")
    assert expanded[expanded.index("--lr") + 1] == "0.002"


@pytest.mark.parametrize(
    ("text", "command", "said"),
    [
        ("train: {lr: 2e-3}", "train", ["--lr", "0.5"]),
        ("train: {lr: 2e-3}", "train", ["--lr=0.5"]),
        ("train: {batch_tokens: 5}", "train", ["--batch_tokens", "6"]),
        ("eval: {num_draft_tokens: 5}", "eval", ["-k", "6"]),
        ("serve: {verdict: true}", "serve", ["--no-verdict"]),
    ],
)
def test_the_command_line_wins(tmp_path: Path, text: str, command: str, said: list[str]):
    path = tmp_path / "r.yaml"
    path.write_text(text)
    assert expand(path, command, *said) == [command, *said]


@pytest.mark.parametrize("arguments", [["--no-init-only"], ["--no-init-only", "--lr", "1e-3"]])
def test_the_command_line_turns_off_a_switch_that_the_recipe_turns_on(tmp_path: Path, arguments: list[str]):
    (tmp_path / "r.yaml").write_text("train: {init_only: true}")
    assert expand(tmp_path / "r.yaml", "train", *arguments) == ["train", *arguments[1:]]


def test_only_switches_are_turned_off_and_nothing_after_the_dashes_is_touched(tmp_path: Path):
    (tmp_path / "r.yaml").write_text("serve: {engine: vllm}")
    given = ["--no-target", "--", "--no-print"]
    assert expand(tmp_path / "r.yaml", "serve", *given) == ["serve", "--engine", "vllm", *given]


def test_an_endless_recipe_is_refused():
    with pytest.raises(RecipeUnreadable, match="longer than"):
        expand(Path("/dev/zero"), "train")


def test_of_options_that_exclude_each_other_that_of_the_command_line_counts_and_it_is_told(tmp_path: Path, capsys):
    path = tmp_path / "r.yaml"
    path.write_text("train: {tokens: 900, lr: 1e-3}")
    assert expand(path, "train", "--steps", "3") == ["train", "--lr", "1e-3", "--steps", "3"]
    assert f"--steps on the command line overrules --tokens in {path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("serve: {verdict: false}", ["--no-verdict"]),
        ("watch: {follow: off}", ["--no-follow"]),
        ("train: {init_only: false, wandb: null}", []),
    ],
)
def test_false_turns_a_switch_off_even_one_that_is_on_by_itself(tmp_path: Path, text: str, tokens: list[str]):
    (tmp_path / "r.yaml").write_text(text)
    command = text.partition(":")[0]
    assert expand(tmp_path / "r.yaml", command) == [command, *tokens]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("train: {wandb: off}", "wandb is false, wanted a value, or null"),
        ("train: {lr: true}", "lr is true, wanted a value, or null"),
        ("train: {data: []}", r"data is \[\], wanted a value, or null"),
        ("train: {init_only: 'yes'}", 'init-only is "yes", wanted true or false'),
        ("train: {steps: 010}", "010 as a number of base 60 or 8"),
        ("train: {steps: 1:30}", "1:30 as a number of base 60 or 8"),
        ("train: {config: other.yaml}", "its section `train` names another recipe"),
    ],
)
def test_a_value_that_its_option_cannot_have_is_refused_and_never_dropped(tmp_path: Path, text: str, says: str):
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(RecipeUnreadable, match=says):
        expand(tmp_path / "r.yaml", "train")


def test_two_recipes_are_refused(tmp_path: Path):
    (tmp_path / "r.yaml").write_text("train: {lr: 1}")
    with pytest.raises(RecipeUnreadable, match="is given 2 times; give it once"):
        expand(tmp_path / "r.yaml", "train", "--config=other.yaml")


@pytest.mark.parametrize(
    ("text", "what", "do"),
    [
        ("train: {ttt_step: 3}", "unknown option ttt-step", "did you mean ttt-steps?"),
        ("trian: {lr: 1}", "unknown section trian", "did you mean train?"),
    ],
)
def test_unknown_keys_are_rejected_with_the_nearest_name(tmp_path: Path, text, what, do):
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(RecipeKeyUnknown) as caught:
        expand(path, "train")
    assert (caught.value.what, caught.value.do) == (what, do)


@pytest.mark.parametrize("text", ["train: [", "- a\n- b", "train: 3", None])
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, text):
    path = tmp_path / "r.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RecipeUnreadable):
        expand(path, "train")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r.yaml", "train: {lr: 1e-3, steps: 2, lr: 2e-3}"),
        ("r.yaml", "train: {batch_tokens: 1, batch-tokens: 2}"),
        ("r.yaml", "train: {steps: 1}\ntrain: {steps: 2}"),
        ("r.json", '{"train": {"steps": 1, "steps": 2}}'),
        ("r.toml", "[train]\nsteps = 1\nsteps = 2\n"),
        ("r.toml", "[train]\nbatch_tokens = 1\nbatch-tokens = 2\n"),
    ],
)
def test_an_option_that_stands_there_twice_is_refused(tmp_path: Path, name: str, text: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(RecipeUnreadable, match=r"twice|overwrite"):
        expand(tmp_path / name, "train")


def test_sections_of_a_yaml_recipe_may_share_options_and_change_them(tmp_path: Path):
    (tmp_path / "r.yaml").write_text(
        "prepare: &both {target: t, out: rows}\ntrain:\n  <<: *both\n  out: draft\n  data: rows\n"
    )
    wanted = ["train", "--target", "t", "--out", "draft", "--data", "rows"]
    assert sorted(expand(tmp_path / "r.yaml", "train")) == sorted(wanted)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r.yaml", "[" * 50_000),
        ("r.json", "[" * 100_000),
        ("r.yaml", "3: {a: 1}"),
        ("r.yaml", "null: {}"),
        ("r.yaml", "train: &x {template_options: *x, steps: *x}"),
        ("r.yaml", "train: {steps: &x {a: *x}}"),
        ("r.json", '{"train": {"out": "a\\u0000b"}}'),
    ],
)
def test_odd_recipes_are_refused_and_no_bug(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str):
    (tmp_path / name).write_text(text)
    assert main(["train", "--config", str(tmp_path / name), "--json"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_arguments_without_a_recipe_are_left_alone():
    for arguments in (["train", "--out", "d"], [], ["--help"], ["serve", "--", "--config", "engine.yaml"]):
        assert with_recipe(arguments, build_app()) == arguments


def test_the_error_reaches_the_user_in_the_houses_form(tmp_path: Path, capsys):
    assert main(["train", "--config", str(tmp_path / "no.yaml")]) == 2
    assert capsys.readouterr().err.startswith("error[recipe-unreadable]: cannot read the recipe")
