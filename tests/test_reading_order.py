"""The maps for a reader: the files that the README and docs/training.md name are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TRAINING = (ROOT / "docs" / "training.md").read_text()


def mapped() -> list[tuple[str, int]]:
    """File from the root, and the lines that a page gives it."""
    readme = re.search(r"## Where the algorithm is\n(.*?)\n## ", (ROOT / "README.md").read_text(), re.S)
    section = re.search(r"## Read the plain version first\n(.*?)\n## ", TRAINING, re.S)
    assert readme is not None
    assert section is not None
    rows = re.findall(r"^\|.*?\]\(((?:src|tests)/\S+?\.py)\).*\| (\d+) \|$", readme.group(1), re.M)
    found = [(path, int(lines)) for path, lines in rows]
    for names, lines in re.findall(r"^\| (`[^|]+`) \| ([\d, ]+) \|", section.group(1), re.M):
        paths = [f"src/eyas/train/{name}" for name in re.findall(r"`([^`]+)`", names)]
        found += zip(paths, map(int, lines.split(", ")), strict=True)
    found += [
        (path if path.startswith("tests/") else f"src/eyas/{path}", int(lines))
        for path, lines in re.findall(r"`([a-z_/]+\.py)`(?:\]\(\S+\))? \((\d+)(?: lines)?[;)]", section.group(1))
    ]
    return found


@pytest.mark.parametrize("path", [path for path, _ in mapped()])
def test_a_file_on_the_map_is_there(path: str):
    assert (ROOT / path).is_file()


def test_the_maps_name_what_runs():
    paths = {path for path, _ in mapped()}
    assert {"src/eyas/engine/round.py", "src/eyas/decode/chain.py", "src/eyas/models/draft.py"} <= paths
    assert "src/eyas/models/draft_layer.py" in paths
    assert {
        "tests/support/plain_trainer.py",
        "src/eyas/train/optimise/trainer.py",
        "src/eyas/train/step/head_loss.py",
    } <= paths


def test_the_objective_that_is_shown_is_the_one_that_the_trainer_is_held_to():
    shown = re.search(r"```python\n(.*?)```", TRAINING, re.S)
    assert shown is not None
    assert shown.group(1) in (ROOT / "tests" / "support" / "plain_trainer.py").read_text()
