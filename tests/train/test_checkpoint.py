"""What stands in the place of an unfinished run: thrown away if it is one, named and left alone if it is not."""

from pathlib import Path

import pytest

from eyas.records.atomic import WriteFailed
from eyas.train.checkpoint import CheckpointDamaged, read_state, throw_away


def a_file(place: Path) -> None:
    place.write_text("notes")


def a_link(place: Path) -> None:
    (place.parent / "elsewhere").mkdir()
    (place.parent / "elsewhere" / "work").write_text("kept")
    place.symlink_to("elsewhere")


def a_link_to_nothing(place: Path) -> None:
    place.symlink_to("nowhere")


@pytest.mark.parametrize("make", [a_file, a_link, a_link_to_nothing])
def test_what_is_no_folder_is_neither_deleted_nor_gone_on_with_and_restart_is_not_advised(tmp_path: Path, make):
    place = tmp_path / "draft.resume"
    make(place)
    for touch in (throw_away, lambda folder: read_state(folder, {})):
        with pytest.raises(CheckpointDamaged, match="is no folder") as caught:
            touch(place)
        assert "--restart" not in caught.value.do
    assert place.is_symlink() or place.read_text() == "notes"
    assert make is not a_link or (place / "work").read_text() == "kept"


def test_a_run_is_thrown_away_and_none_is_none(tmp_path: Path):
    place = tmp_path / "draft.resume"
    throw_away(place)
    (place / "last-good").mkdir(parents=True)
    (place / "last-good" / "weights").write_text("w")
    throw_away(place)
    assert not place.exists()


def test_a_run_that_cannot_be_deleted_is_not_gone_on_with(tmp_path: Path, monkeypatch):
    place = tmp_path / "draft.resume"
    place.mkdir()
    # As root, who runs tests in containers, no permission stops a deletion.
    monkeypatch.setattr("eyas.train.checkpoint.shutil.rmtree", lambda *_, **__: None)
    with pytest.raises(WriteFailed, match="cannot delete"):
        throw_away(place)
