"""The commands that our pages show can be typed: each command and each of its options exists."""

import contextlib
import io
import re
from functools import cache
from pathlib import Path

import pytest

from eyas.cli.app import main

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
_COMMAND = re.compile(r"(?<![\w/.-])eyas ([a-z]+)\b((?:(?!eyas )[^`\n|]|\\\n)*)")


def commands_of(page: Path) -> list[tuple[str, list[str]]]:
    """(command, its options) of each command in code, up to `--`; what follows is the engine's."""
    text = page.read_text()
    code = re.findall(r"```.*?```|(?<!`)`[^`]+`(?!`)|^ {4}\$ .*$", text, re.S | re.M)
    found = []
    for part in code:
        part = re.sub(r"\[(eyas(?:, [^\]]+)+)\]", lambda match: re.sub(r'[",]', "", match[1]), part)
        for command, rest in _COMMAND.findall(part):
            ours = re.split(r" -- | > |;|#", rest)[0]
            found.append((command, re.findall(r"(?<=\s)--[a-z][a-z-]*", ours)))
    return found


@cache
def options_of(command: str) -> set[str]:
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        code = main([command, "--help"])
    return set(re.findall(r"--[a-z][a-z-]*", told.getvalue())) if code == 0 else set()


@pytest.mark.parametrize("page", [p for p in PAGES if p.stem not in ("log", "errors")], ids=lambda page: page.stem)
def test_every_option_of_a_command_on_a_page_exists(page: Path):
    wrong = [
        f"eyas {command} {option}"
        for command, options in commands_of(page)
        for option in options
        if option not in options_of(command) | {"--help", "--version"}
    ]
    assert wrong == []


def test_a_wrong_option_is_seen(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("Type `eyas check D --fro sglang==0.5.9`, or:\n```\neyas serve --print -- --tp 8\n```\n")

    assert commands_of(page) == [("check", ["--fro"]), ("serve", ["--print"])]
    assert "--fro" not in options_of("check")
    assert "--for" in options_of("check")
