"""An option that several commands have is the same one in each: name, form and default."""

import re

import pytest

from eyas.cli.app import COMMANDS, build_app, main
from eyas.decode.accept_length import DEFAULT_DRAFT_TOKENS


@pytest.mark.parametrize(
    ("option", "commands", "default"),
    [
        ("--device", ["prepare", "train", "eval", "infer", "bench", "chat"], "auto"),
        ("--threads", ["prepare", "train", "eval", "infer", "bench", "chat"], None),
    ],
)
def test_commands_that_compute_take_the_same_options_with_the_same_defaults(option, commands, default):
    app = build_app()
    for command in commands:
        found = [a for a in app[command].assemble_argument_collection() if option in a.names]
        assert [a.field_info.default for a in found] == [default], command


@pytest.mark.parametrize(
    ("option", "commands"),
    [
        ("--draft", ["eval", "infer", "check", "convert", "bench", "chat", "serve"]),
        ("--out", ["demo", "prepare", "train", "eval", "convert", "bench", "report", "watch"]),
        ("-k", ["demo", "eval", "infer", "check", "bench", "chat", "serve"]),
    ],
)
def test_what_several_commands_take_goes_by_one_name_also_where_it_may_stand_without(option, commands):
    app = build_app()
    for command in commands:
        assert any(option in a.names for a in app[command].assemble_argument_collection()), command


def test_every_command_drafts_the_same_number_of_tokens_unless_told():
    app = build_app()
    found = {
        f"{command} {argument.name}": str(argument.field_info.default)
        for command in COMMANDS
        for argument in app[command].assemble_argument_collection()
        if argument.name.endswith("-draft-tokens")
    }
    assert len(found) >= 9
    assert found.pop("chat --num-draft-tokens") == "auto"  # each round's depth is chosen by its cost
    assert found.pop("accept --num-draft-tokens") == "None"  # as the server says
    assert set(found.values()) == {str(DEFAULT_DRAFT_TOKENS)}


def test_a_switch_that_is_off_has_no_second_name_that_turns_it_off():
    app = build_app()
    twice = [
        (command, argument.name)
        for command in COMMANDS
        for argument in app[command].assemble_argument_collection()
        if argument.field_info.default is False and any(name.startswith("--no-") for name in argument.names)
    ]
    assert twice == []


@pytest.mark.parametrize(
    ("command", "sections"),
    [
        (
            "train",
            [
                "Parameters",
                "The target's states",
                "How much",
                "The draft",
                "Optimisation",
                "Checks",
                "Machine",
                "Output",
            ],
        ),
        ("prepare", ["Parameters", "Data and rows", "What the target writes", "Machine", "Output"]),
    ],
)
def test_long_help_is_in_sections_and_what_must_be_given_comes_first(command, sections, capsys):
    assert main([command, "--help"]) == 0
    page = capsys.readouterr().out
    assert re.findall(r"^╭─ (.+?) ─", page, re.M) == sections
    required = page.split("╭─ ")[1]
    assert set(re.findall(r"--[a-z-]+", required)) == {"--target", "--out"} | (
        {"--data"} if command == "train" else set()
    )
