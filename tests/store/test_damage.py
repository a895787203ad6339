"""Kills, torn tails, full disks, flipped bits and foreign folders: nothing is lost that was appended, nothing is read
that was not."""

import json
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from eyas.records.atomic import WriteFailed
from eyas.store import StoreReader, StoreWriter
from eyas.store.about import StoreUnreadable
from eyas.store.layout import StoreDamaged
from eyas.store.writer import StoreInUse, locked, require_unwritten
from stored_rows import ABOUT, assert_same_row, fill, stored_row

_NUM = 200
_CHILD = f"""
import sys
from pathlib import Path
from stored_rows import ABOUT, stored_row
from eyas.store import StoreWriter
with StoreWriter.open(Path(sys.argv[1]), ABOUT, shard_bytes=4000) as writer:
    for seed in range({_NUM}):
        if writer.append(stored_row(seed)):
            print(seed, flush=True)
"""


def _start(folder: Path) -> subprocess.Popen[str]:
    support = str(Path(__file__).parents[1] / "support")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([support, *sys.path])}
    words = [sys.executable, "-c", _CHILD, str(folder)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)


def _killed_after(folder: Path, num_rows: int) -> list[int]:
    child = _start(folder)
    assert child.stdout is not None
    said = [int(line) for _, line in zip(range(num_rows), child.stdout, strict=False)]
    child.kill()
    said += [int(line) for line in child.stdout]
    child.wait()
    return said


def _kill_and_resume(folder: Path, kills: int, seed: int) -> None:
    draw = random.Random(seed)
    appended = list[int]()
    for _ in range(kills):
        appended += _killed_after(folder, draw.randint(1, _NUM // kills))
        held = set(StoreReader.open(folder).keys)
        assert {stored_row(s).key for s in appended} <= held
    appended += _killed_after(folder, _NUM + 1)
    # a row may have been appended and not yet said when the kill came; none is appended twice
    assert len(appended) == len(set(appended)) >= _NUM - kills
    reader = StoreReader.open(folder)
    assert (len(reader), reader.num_repeated) == (_NUM, 0)
    for s in range(_NUM):
        assert_same_row(reader.row(s), stored_row(s))


def test_rows_said_to_be_appended_survive_kills(tmp_path: Path):
    _kill_and_resume(tmp_path / "s", kills=4, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_rows_said_to_be_appended_survive_20_kills(tmp_path: Path, seed: int):
    _kill_and_resume(tmp_path / "s", kills=20, seed=seed)


@pytest.mark.parametrize("suffix", ["open", "journal"])
def test_a_tail_torn_at_any_byte_is_cut_and_told_and_whole_rows_stay(tmp_path: Path, suffix: str):
    rows = [stored_row(seed) for seed in range(4)]
    for lost in range(1, 60, 7):
        folder = tmp_path / f"s{lost}"
        writer = StoreWriter.open(folder, ABOUT)
        fill(writer, range(4))
        writer.abandon()
        path = folder / f"w000-00000.{suffix}"
        os.truncate(path, path.stat().st_size - lost)

        assert [row.key for row in rows[:3]] == list(StoreReader.open(folder).keys)
        with StoreWriter.open(folder, ABOUT) as writer:
            assert "bytes of an unfinished row cut" in writer.repaired[0]
            fill(writer, range(4))
        reader = StoreReader.open(folder)
        for number, row in enumerate(rows):
            assert_same_row(reader.row(number), row)


def test_states_that_never_reached_the_disk_are_cut_with_what_follows(tmp_path: Path):
    writer = StoreWriter.open(tmp_path / "s", ABOUT)
    fill(writer, range(4))
    writer.abandon()
    path = tmp_path / "s" / "w000-00000.open"
    begin = 4096 + sum(stored_row(seed).states.nbytes for seed in (0, 1))
    with open(path, "r+b") as file:  # as after a power cut: the length is there, the data is not
        file.seek(begin)
        file.write(bytes(stored_row(2).states.nbytes))

    writer = StoreWriter.open(tmp_path / "s", ABOUT)
    assert "2 rows cut whose states were not on the disk" in " ".join(writer.repaired)
    assert writer.num_known == 2
    writer.abandon()


@pytest.mark.parametrize("step", ["before the header", "before the new name", "before the journal goes"])
def test_a_kill_while_a_shard_is_finished_loses_nothing(tmp_path: Path, monkeypatch, step: str):
    from eyas.store import growing_shard

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    writer = StoreWriter.open(tmp_path / "s", ABOUT)
    fill(writer, range(4))
    with monkeypatch.context() as patch:
        if step == "before the header":
            patch.setattr(growing_shard, "_write_head", killed)
        elif step == "before the new name":
            patch.setattr(os, "rename", killed)
        else:
            patch.setattr(growing_shard, "fsync_path", killed)
        with pytest.raises(Killed):
            writer.close()

    assert len(StoreReader.open(tmp_path / "s")) == 4
    with StoreWriter.open(tmp_path / "s", ABOUT) as writer:
        assert writer.num_known == 4
        fill(writer, range(6))
    reader = StoreReader.open(tmp_path / "s")
    assert (len(reader), reader.num_repeated) == (6, 0)


@pytest.mark.parametrize("room", [3000, 5000, 6000, 8000, 10_000])
def test_a_full_disk_is_told_and_all_rows_before_it_stay(tmp_path: Path, room: int):
    """A limit on the size of a file stands for the full disk: the same write fails half way."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = StoreWriter.open(tmp_path / "s", ABOUT)
    num = 0
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
        with pytest.raises(WriteFailed, match="run the same command again"), writer:
            for num in range(200):
                writer.append(stored_row(num))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    with StoreWriter.open(tmp_path / "s", ABOUT) as writer:
        assert writer.num_known == num
        assert writer.repaired == []
        fill(writer, range(200))
    reader = StoreReader.open(tmp_path / "s")
    for seed in range(200):
        assert_same_row(reader.row(seed), stored_row(seed))


def test_any_flipped_bit_of_header_or_index_is_found_and_the_shard_named(tmp_path: Path):
    with StoreWriter.open(tmp_path / "s", ABOUT) as writer:
        fill(writer, range(4))
    path = tmp_path / "s" / "w000-00000.safetensors"
    whole = path.read_bytes()
    num_states = sum(stored_row(seed).states.nbytes for seed in range(4))
    draw = random.Random(0)
    places = [*range(0, 1500, 37), 4095, *(draw.randrange(4096 + num_states, len(whole)) for _ in range(80))]
    for at in places:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << draw.randrange(8))]) + whole[at + 1 :])
        with pytest.raises(StoreDamaged, match=r"w000-00000\.safetensors.*\n(.*\n)*.*eyas store drop"):
            StoreReader.open(tmp_path / "s")
    for cut in (0, 7, 4000, 4096, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(StoreDamaged):
            StoreReader.open(tmp_path / "s")


def _manifest(**changes: object) -> str:
    return json.dumps({**ABOUT.as_document(), **changes})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        '{"schema": "eyas.store/2"}',
        _manifest(schema="eyas.rows/1"),
        _manifest(hidden_size=0),
        _manifest(hidden_size=1 << 60),
        _manifest(hidden_size=True),
        _manifest(hidden_size=8.0),
        _manifest(num_layers="6"),
        _manifest(vocab_size=None),
        _manifest(boundaries=[1, 7]),
        _manifest(boundaries=[3, 1]),
        _manifest(boundaries=[1, 1]),
        _manifest(boundaries=[-1]),
        _manifest(boundaries="1"),
        _manifest(boundaries=[1], num_layers=None),
        _manifest(dtype="int8"),
        _manifest(dtype=[]),
        _manifest(last="norm"),
        _manifest(target="../../etc/passwd"),
        _manifest(source=7),
        _manifest(rows=7),
        _manifest(keep_prompt=-1),
        _manifest(shards=["../../../etc/passwd"]),
        _manifest(source="x" * (1 << 20)),
    ],
)
def test_a_foreign_manifest_is_refused(tmp_path: Path, text: str):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(StoreUnreadable, match="is not a store of states"):
        StoreReader.open(tmp_path)


def test_a_store_of_another_kind_of_file_is_refused_without_waiting(tmp_path: Path):
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(StoreUnreadable):
        StoreReader.open(tmp_path)


def test_a_shard_that_a_stranger_made_is_held_to_its_own_claims(tmp_path: Path):
    with StoreWriter.open(tmp_path / "s", ABOUT) as writer:
        fill(writer, range(2))
    path = tmp_path / "s" / "w000-00000.safetensors"
    whole = path.read_bytes()
    said = json.loads(json.loads(whole[8:4096])["__metadata__"]["eyas"])
    for counts in ([1 << 62, 1, 1], [-1, 1, 1], [1.0, 1, 1], "abc", [1, 1], [10, 10, 0]):
        text = json.dumps({"__metadata__": {"eyas": json.dumps({**said, "counts": counts})}}).encode()
        path.write_bytes(whole[:8] + text.ljust(4088) + whole[4096:])
        with pytest.raises(StoreDamaged):
            StoreReader.open(tmp_path / "s")


def test_files_beside_the_shards_are_not_touched(tmp_path: Path):
    with StoreWriter.open(tmp_path / "s", ABOUT) as writer:
        fill(writer, range(2))
    for name in ("w000-00000x.safetensors", "notes.open", "w0-1.journal", "..w000-00009.open"):
        (tmp_path / "s" / name).write_text("mine")
    with StoreWriter.open(tmp_path / "s", ABOUT) as writer:
        fill(writer, range(3))
    assert (tmp_path / "s" / "notes.open").read_text() == "mine"
    assert len(StoreReader.open(tmp_path / "s")) == 3


def test_a_living_writer_is_seen_and_a_dead_one_is_not(tmp_path: Path):
    writer = StoreWriter.open(tmp_path / "s", ABOUT)
    with locked(tmp_path / "s"), pytest.raises(StoreInUse, match="is being written"):
        require_unwritten(tmp_path / "s")
    writer.abandon()
    with locked(tmp_path / "s"):
        require_unwritten(tmp_path / "s")
