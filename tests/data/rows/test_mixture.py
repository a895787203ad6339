import json
from pathlib import Path

import pytest

from byte_tokenizer import save_target_with
from eyas.data.prepare import PrepareConfig, Prepared, prepare
from eyas.data.prepare_config import ConfigInvalid
from eyas.data.rows.mixture import data_files, times
from eyas.data.rows.row_store import Rows
from eyas.talk import Silent


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target_with(tmp_path_factory.mktemp("target"))


def write(path: Path, *questions: str) -> Path:
    turns = [[{"role": "user", "content": q}, {"role": "assistant", "content": "A"}] for q in questions]
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in turns))
    return path


def run(target: Path, data: list[str | Path], out: Path, **options) -> Prepared:
    return prepare(target, data, out, PrepareConfig(**options), Silent())


def test_a_weight_says_how_often_each_row_is_taken(target: Path, tmp_path: Path):
    one, many = write(tmp_path / "one.jsonl", "a"), write(tmp_path / "many.jsonl", *map(str, range(200)))
    done = run(target, [f"{one}:3", f"{many}:0.5"], tmp_path / "rows", held_out=0)

    first, second = done.manifest.sources
    assert (first.num_rows, first.weight) == (3, 3.0)
    assert 70 < second.num_rows < 130
    assert done.manifest.dropped == {"left out by its file's weight": 200 - second.num_rows}
    rows = list(Rows(tmp_path / "rows"))
    assert len(rows) == done.manifest.num_rows == 3 + second.num_rows
    assert rows[0] == rows[1] == rows[2]
    assert len(set(rows)) == 1 + second.num_rows


def test_the_same_share_is_taken_every_time_and_a_larger_one_holds_it(target: Path, tmp_path: Path):
    data = write(tmp_path / "d.jsonl", *map(str, range(100)))
    few, again, more = (
        set(Rows(run(target, [f"{data}:{w}"], tmp_path / name).folder))
        for name, w in [("a", 0.2), ("b", 0.2), ("c", 0.6)]
    )
    assert few == again
    assert few < more


def test_weights_are_part_of_the_fingerprint(target: Path, tmp_path: Path):
    data = write(tmp_path / "d.jsonl", "a", "b")
    prints = {run(target, [f"{data}{w}"], tmp_path / f"r{w[1:]}").manifest.fingerprint for w in ("", ":2", ":3")}
    assert len(prints) == 3


def test_whole_weights_need_no_chance():
    assert [times((1, 2), w) for w in (1.0, 2.0, 5.0)] == [1, 2, 5]
    assert {times((i,), 1.5) for i in range(50)} == {1, 2}


def test_an_empty_name_is_not_the_present_folder():
    with pytest.raises(ConfigInvalid, match="empty"):
        data_files([""])


def test_a_colon_in_a_file_name_is_no_weight(tmp_path: Path):
    odd = write(tmp_path / "a:2", "x")
    assert [(f.path, f.weight) for f in data_files([odd])] == [(odd, 1.0)]
    folder = tmp_path / "set:x"
    folder.mkdir()
    inside = write(folder / "d.jsonl", "x")
    assert [(f.path, f.weight) for f in data_files([folder, f"{folder}:0.5"])] == [(inside, 1.0), (inside, 0.5)]


@pytest.mark.parametrize("weight", ["0", "-1", "101", "nan"])
def test_a_weight_that_takes_nothing_or_too_much_is_refused(tmp_path: Path, weight: str):
    data = write(tmp_path / "d.jsonl", "x")
    with pytest.raises(ConfigInvalid, match=f"a weight of {weight}"):
        data_files([f"{data}:{weight}"])
