"""An option that several commands have is the same one in each: name, form and default."""

import pytest

from eyas.cli.app import build_app


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
