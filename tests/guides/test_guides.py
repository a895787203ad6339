"""The guides: what their commands print is what the pages show. After a change of words run guide_runner.py."""

import json
import re
import shutil
from pathlib import Path

import pytest

from guide_folders import FOLDERS
from guide_runner import GUIDES, ROOT, Shell, rewritten, same, steps_of

NEEDS_A_TARGET = {"your-own-draft", "accept-length-one"}
NEEDS_TORCH = {"kimi-on-8-gpus"}


@pytest.mark.parametrize("name", sorted(FOLDERS))
def test_a_guide_shows_what_its_commands_print(name: str, tmp_path: Path, request: pytest.FixtureRequest):
    if name in NEEDS_A_TARGET | NEEDS_TORCH:
        pytest.importorskip("torch")
    if name in NEEDS_A_TARGET:
        request.getfixturevalue("smollm2_folder")
    FOLDERS[name](tmp_path)
    shell = Shell(tmp_path)

    wrong = []
    for step in steps_of((GUIDES / f"{name}.md").read_text()):
        printed = shell.run(step.command)
        if not same(step.shown, printed, numbers_vary=step.numbers_vary):
            wrong.append(f"$ {step.command}\n{printed}")
    shutil.rmtree(tmp_path)  # one of them writes a gigabyte

    assert wrong == [], "python tests/support/guide_runner.py writes what is printed now into the guides"


def test_every_guide_is_run():
    assert {path.stem for path in GUIDES.glob("*.md")} == set(FOLDERS)
    assert all(len(steps_of((GUIDES / f"{name}.md").read_text())) >= 4 for name in FOLDERS)


def test_what_a_guide_quotes_from_a_recorded_run_was_recorded():
    quoted = [
        (ROOT / source, line)
        for path in GUIDES.glob("*.md")
        for source, text in re.findall(r"<!-- recorded: (\S+) -->\n```\w*\n(.*?)```", path.read_text(), re.S)
        for line in text.splitlines()
    ]

    assert quoted
    for source, line in quoted:
        assert json.dumps(line)[1:-1] in source.read_text(), line


def test_a_wrong_line_a_missing_line_and_a_wrong_number_are_seen():
    printed = "loaded 3 rows in 4 s\nwrote OUT\n"

    assert same("loaded 3 rows in 9 s\nwrote OUT\n", printed, numbers_vary=False)
    assert same("...\nwrote OUT\n", printed, numbers_vary=False)
    assert same("loaded 7 rows in 4 s\nwrote OUT\n", printed, numbers_vary=True)
    assert not same("loaded 7 rows in 4 s\nwrote OUT\n", printed, numbers_vary=False)
    assert not same("loaded 3 rows in 4 s\n", printed, numbers_vary=False)
    assert not same("...\nwrote IN\n", printed, numbers_vary=True)


def test_rewriting_keeps_what_was_left_out_and_the_page_around_it():
    page = "Text.\n<!-- run -->\n```console\n$ eyas a \\\n    -k 3\none\n...\nlast\n$ echo $?\n```\nMore.\n"

    found = rewritten(page, lambda command: {"eyas a -k 3": "1\n2\n3\n4\n", "echo $?": "0\n"}[command])

    assert found == page.replace("one\n...\nlast\n", "1\n...\n4\n").replace("$ echo $?\n", "$ echo $?\n0\n")


def test_every_code_that_a_guide_explains_has_a_heading():
    headings = set(re.findall(r"^#+ ([a-z0-9-]+)$", (ROOT / "docs" / "errors.md").read_text(), re.M))
    prose = "".join(re.sub(r"```.*?```", "", path.read_text(), flags=re.S) for path in GUIDES.glob("*.md"))

    named = set(re.findall(r"`([a-z][a-z0-9]*(?:-[a-z0-9]+)+)`", prose)) - {"smollm2-135m"}
    assert named <= headings
