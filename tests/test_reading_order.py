"""The maps for a reader: the files that the README and docs/training.md name are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TRAINING = (ROOT / "docs" / "training.md").read_text()


def mapped() -> set[str]:
    """The files that the maps name, from the root."""
    readme = re.search(r"## Where the algorithm is\n(.*?)\n## ", (ROOT / "README.md").read_text(), re.S)
    section = re.search(r"## Read the plain version first\n(.*?)\n## ", TRAINING, re.S)
    assert readme is not None
    assert section is not None
    found = set(re.findall(r"\]\(((?:src|tests)/\S+?\.py)\)", readme.group(1)))
    rooms = "|".join(path.name for path in (ROOT / "src" / "eyas" / "train").iterdir() if path.is_dir())
    for name in re.findall(r"`([a-z_/]+/[a-z_]+\.py)`", section.group(1)):
        within = (
            "" if name.startswith("tests/") else "src/eyas/train/" if re.match(rf"(?:{rooms})/", name) else "src/eyas/"
        )
        found.add(within + name)
    return found


@pytest.mark.parametrize("path", sorted(mapped()))
def test_a_file_on_the_map_is_there(path: str):
    assert (ROOT / path).is_file()


def test_the_maps_name_what_runs():
    assert mapped() >= {
        "src/eyas/engine/round.py",
        "src/eyas/decode/chain.py",
        "src/eyas/models/draft.py",
        "src/eyas/models/draft_layer.py",
        "tests/support/plain_trainer.py",
        "src/eyas/train/optimise/trainer.py",
        "src/eyas/train/step/ttt_loss.py",
    }


def test_the_objective_that_is_shown_is_the_one_that_the_trainer_is_held_to():
    shown = re.search(r"```python\n(.*?)```", TRAINING, re.S)
    assert shown is not None
    assert shown.group(1) in (ROOT / "tests" / "support" / "plain_trainer.py").read_text()
