"""verify, stats, merge and drop: a damaged row is named and removed alone, merged stores hold all rows once."""

import json
import os
from pathlib import Path

import pytest

from eyas.cli.app import main
from eyas.store import StoreReader, StoreWriter
from eyas.store.about import StoreMismatch
from eyas.store.layout import StoreDamaged
from eyas.store.upkeep import drop, drop_all, merge, stats
from eyas.store.verify import verify
from eyas.store.writer import StoreInUse
from eyas.talk import Silent
from stored_rows import ABOUT, about, assert_same_row, fill, stored_row


def _store(folder: Path, seeds: range, source: str = ABOUT.source, shard_bytes: int = 3000) -> Path:
    with StoreWriter.open(folder, about(source=source), shard_bytes=shard_bytes) as writer:
        fill(writer, seeds)
    return folder


def _flip(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        old = file.read(1)[0]
        file.seek(at)
        file.write(bytes([old ^ 4]))


def test_a_flipped_bit_of_the_states_is_named_by_shard_and_row_and_dropped_alone(tmp_path: Path):
    folder = _store(tmp_path / "s", range(12))
    assert verify(folder, Silent()).num_faults == 0
    shard = StoreReader.open(folder).shards[1]
    starts = shard.index.state_starts()
    _flip(shard.path, 4096 + int(starts[2]) * ABOUT.width * 2 - 1)  # the last byte of its second row
    key = shard.index.key_list()[1]

    found = verify(folder, Silent())
    assert [str(fault) for fault in found.faults] == [
        f"w000-00001, row 1 ({key}): its states are not those that were written"
    ]
    assert (found.num_rows, found.num_faults) == (11, 1)
    assert drop(folder, Silent(), damaged_rows=True) == 1
    assert verify(folder, Silent()).num_faults == 0
    assert key not in StoreReader.open(folder).keys
    with StoreWriter.open(folder, ABOUT) as writer:
        assert writer.num_known == 11
        fill(writer, range(12))
    reader = StoreReader.open(folder)
    for seed in range(12):
        number = reader.find(stored_row(seed).key)
        assert number is not None
        assert_same_row(reader.row(number), stored_row(seed))


def test_a_damaged_index_and_a_missing_shard_are_faults_and_drop_mends_the_rest(tmp_path: Path):
    folder = _store(tmp_path / "s", range(12))
    before = StoreReader.open(folder).shards
    assert len(before) >= 3
    _flip(before[0].path, 20)
    before[1].path.unlink()

    found = verify(folder, Silent())
    assert [(fault.shard, fault.row) for fault in found.faults] == [("w000-00000", None), ("w000-00001", None)]
    with pytest.raises(StoreDamaged):
        drop(folder, Silent(), repeated=True)
    talk = Silent()
    drop(folder, talk, damaged_rows=True)
    assert len(talk.notes) == 2
    assert verify(folder, Silent()).num_faults == 0
    assert len(StoreReader.open(folder)) == 12 - before[0].index.num_rows - before[1].index.num_rows


def test_merged_stores_hold_all_rows_with_their_sources_and_take_no_more_room(tmp_path: Path):
    first = _store(tmp_path / "a", range(8))
    second = _store(tmp_path / "b", range(6, 12), source="vllm==0.25.1")
    left = StoreWriter.open(first, ABOUT)  # a writer that was killed
    fill(left, range(12, 14))
    with pytest.raises(StoreInUse):
        merge([first, second], tmp_path / "c")
    left.abandon()
    assert not (tmp_path / "c").exists()

    document = merge([first, second], tmp_path / "c")

    assert (document["rows"], document["repeated_rows"]) == (14, 2)
    assert document["rows_by_source"] == {ABOUT.source: 10, "vllm==0.25.1": 6}
    reader = StoreReader.open(tmp_path / "c")
    assert all(os.stat(shard.path).st_nlink == 2 for shard in reader.shards)
    assert drop(tmp_path / "c", Silent(), repeated=True) == 2
    assert stats(tmp_path / "c")["repeated_rows"] == 0
    for seed in range(14):
        number = StoreReader.open(tmp_path / "c").find(stored_row(seed).key)
        assert number is not None
        assert_same_row(StoreReader.open(tmp_path / "c").row(number), stored_row(seed))
    assert len(StoreReader.open(second)) == 6, "the linked store is as it was"


def test_stores_of_other_states_are_not_merged(tmp_path: Path):
    first = _store(tmp_path / "a", range(2))
    with StoreWriter.open(tmp_path / "b", about("float16")) as writer:
        fill(writer, range(2))
    with pytest.raises(StoreMismatch, match="dtype: 'float16' then, 'bfloat16' now"):
        merge([first, tmp_path / "b"], tmp_path / "c")


def test_deleting_a_store_keeps_what_is_not_its_own(tmp_path: Path):
    folder = _store(tmp_path / "a", range(3))
    (folder / "notes.txt").write_text("mine")
    assert drop_all(folder) == ("notes.txt",)
    assert drop_all(_store(tmp_path / "b", range(3))) == ()
    assert not (tmp_path / "b").exists()


def test_the_commands_tell_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = _store(tmp_path / "s", range(6))
    assert main(["store", "stats", str(folder)]) == 0
    assert "6 rows" in capsys.readouterr().out
    _flip(StoreReader.open(folder).shards[0].path, 4096)
    assert main(["store", "verify", str(folder), "--json"]) == 1
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (document["schema"], document["rows"], document["num_faults"]) == ("eyas.store-verify/1", 5, 1)
    assert main(["store", "drop", str(folder), "--damaged"]) == 0
    assert "dropped 1 row" in capsys.readouterr().out
    assert main(["store", "verify", str(folder)]) == 0
    assert (
        main(["store", "merge", str(folder), str(_store(tmp_path / "t", range(6, 9))), "--out", str(tmp_path / "m")])
        == 0
    )
    assert "8 rows" in capsys.readouterr().out
    assert main(["store", "drop", str(folder), "--all"]) == 0
    assert not folder.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("verify a b", "verify takes one store, not 2"),
        ("merge a b", "merge wants --out OUT"),
        ("stats a --out b", "--out belongs to merge"),
        ("drop a", "drop wants --damaged, --repeated or --all"),
        ("verify a --damaged", "--damaged belongs to drop"),
        ("drop a --all --damaged", "drop wants"),
        ("stats nowhere", "nowhere is not a store of states"),
    ],
)
def test_a_wrong_command_line_is_refused(words: str, said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["store", *words.split()]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("lock", [".lock", "w000.lock"])
@pytest.mark.parametrize("words", ["merge {} {}2 --out {}m", "drop {} --damaged"])
@pytest.mark.timeout(20)
def test_a_pipe_in_place_of_a_lock_is_told_and_not_waited_for(
    lock: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    store = _store(tmp_path / "a", range(2))
    _store(tmp_path / "a2", range(2))
    (store / lock).unlink(missing_ok=True)
    os.mkfifo(store / lock)

    assert main(["store", *words.replace("{}", str(store)).split()]) == 3
    assert "it is a device or a pipe, not a file" in capsys.readouterr().err
