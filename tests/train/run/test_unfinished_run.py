"""What stands in the place of an unfinished run: thrown away if it is one, named and left alone if it is not."""

import os
from pathlib import Path

import pytest

from eyas.records.atomic import WriteFailed
from eyas.records.checkpoint import LAST_GOOD, STATE
from eyas.train.run.unfinished_run import CheckpointDamaged, read_state, throw_away


def a_file(place: Path) -> None:
    place.write_text("notes")


def a_link(place: Path) -> None:
    (place.parent / "elsewhere").mkdir()
    (place.parent / "elsewhere" / "work").write_text("kept")
    place.symlink_to("elsewhere")


def a_folder_of_somebody(place: Path) -> None:
    place.mkdir()
    (place / "work").write_text("kept")


def a_run_with_a_pipe(place: Path) -> None:
    place.mkdir()
    os.mkfifo(place / STATE)


def a_link_to_nothing(place: Path) -> None:
    place.symlink_to("nowhere")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (a_file, "is not a folder"),
        (a_link, "is not a folder"),
        (a_link_to_nothing, "is not a folder"),
        (a_folder_of_somebody, "holds work"),
        (a_run_with_a_pipe, "holds state.json"),
    ],
)
def test_what_is_no_run_is_neither_deleted_nor_gone_on_with_and_restart_is_not_advised(tmp_path: Path, make, says: str):
    place = tmp_path / "draft.resume"
    make(place)
    for touch in (throw_away, lambda folder: read_state(folder, {})):
        with pytest.raises(CheckpointDamaged, match=says) as caught:
            touch(place)
        assert "--restart" not in caught.value.do
    assert place.is_symlink() or place.is_dir() or place.read_text() == "notes"
    assert make not in (a_link, a_folder_of_somebody) or (place / "work").read_text() == "kept"


def test_a_run_is_thrown_away_and_none_is_none(tmp_path: Path):
    place = tmp_path / "draft.resume"
    throw_away(place)
    (place / LAST_GOOD).mkdir(parents=True)
    (place / LAST_GOOD / "weights").write_text("w")
    (place / ".nfs0001").write_text("")
    throw_away(place)
    assert not place.exists()


def test_a_run_that_cannot_be_deleted_is_not_gone_on_with(tmp_path: Path, monkeypatch):
    place = tmp_path / "draft.resume"
    place.mkdir()
    # As root, who runs tests in containers, no permission stops a deletion.
    monkeypatch.setattr("eyas.train.run.unfinished_run.shutil.rmtree", lambda *_, **__: None)
    with pytest.raises(WriteFailed, match="cannot delete"):
        throw_away(place)
