"""What is appended is what is read: over shards, writers, resumes, and every dtype."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from eyas.records.atomic import OutputExists
from eyas.store import StoreReader, StoreRow, StoreWriter, row_key
from eyas.store.about import StoreMismatch
from eyas.store.reader import StoreLacksBoundary
from stored_rows import ABOUT, about, assert_same_row, fill, stored_row

_ROW = st.tuples(st.integers(0, 10_000), st.integers(1, 12), st.integers(0, 11), st.booleans())


@settings(max_examples=40, deadline=None)
@given(
    drawn=st.lists(_ROW, max_size=12),
    dtype=st.sampled_from(["bfloat16", "float16", "float32", "float8_e4m3"]),
    shard_bytes=st.sampled_from([1, 500, 1 << 30]),
    reopen_after=st.sets(st.integers(0, 11)),
)
def test_every_row_comes_back_as_it_was_whatever_the_shards_and_restarts(
    tmp_path_factory, drawn, dtype, shard_bytes, reopen_after
):
    folder, kind = tmp_path_factory.mktemp("any") / "store", about(dtype)
    rows = dict[str, StoreRow]()
    writer = StoreWriter.open(folder, kind, shard_bytes=shard_bytes)
    for i, (seed, length, first, is_known) in enumerate(drawn):
        row = stored_row(seed, kind, length, min(first, length - 1))
        row = (
            row
            if is_known
            else StoreRow(token_ids=row.token_ids, states=row.states, first=row.first, scales=row.scales)
        )
        assert writer.append(row) == (row.key not in rows)
        rows.setdefault(row.key, row)
        if i in reopen_after:
            (writer.abandon if i % 2 else writer.close)()
            writer = StoreWriter.open(folder, kind, shard_bytes=shard_bytes)
            assert writer.repaired == []
            assert writer.num_known == len(rows)
    for _ in range(2):  # while it grows, and finished
        reader = StoreReader.open(folder)
        assert list(reader.keys) == list(rows)
        assert reader.lengths.tolist() == [len(row.token_ids) for row in rows.values()]
        for i, row in enumerate(rows.values()):
            reader.prefetch(i)
            assert_same_row(reader.row(i), row)
            assert reader.find(row.key) == i
        writer.close()
    assert not list(folder.glob("*.open")) + list(folder.glob("*.journal"))


def test_a_shard_is_a_safetensors_file(tmp_path: Path):
    with StoreWriter.open(tmp_path / "s", about("float32")) as writer:
        fill(writer, range(3))

    rows = [stored_row(i, about("float32")) for i in range(3)]
    with safe_open(tmp_path / "s" / "w000-00000.safetensors", "np") as file:
        assert np.array_equal(file.get_tensor("states"), np.concatenate([row.states for row in rows]))
        assert file.get_tensor("row_starts").tolist() == np.cumsum([0, *(len(r.token_ids) for r in rows)]).tolist()


def test_two_writers_at_once_have_shards_of_their_own_and_a_row_of_both_is_read_once(tmp_path: Path):
    first, second = (StoreWriter.open(tmp_path / "s", ABOUT) for _ in range(2))
    fill(first, range(6))
    fill(second, range(4, 10))
    assert not second.has(stored_row(0).key)
    second.flush()
    assert second.has(stored_row(0).key)
    first.close()
    second.close()

    reader = StoreReader.open(tmp_path / "s")
    assert [str(shard.name) for shard in reader.shards] == ["w000-00000", "w001-00000"]
    assert set(reader.keys) == {stored_row(seed).key for seed in range(10)}
    assert reader.num_repeated == 2


def test_a_reader_keeps_its_rows_while_writers_go_on(tmp_path: Path):
    writer = StoreWriter.open(tmp_path / "s", ABOUT)
    fill(writer, range(3))
    reader = StoreReader.open(tmp_path / "s")
    fill(writer, range(3, 5))
    writer.close()

    assert len(reader) == 3
    for seed in range(3):
        assert_same_row(reader.row(seed), stored_row(seed))


def test_rows_of_other_states_are_refused_with_what_differs(tmp_path: Path):
    StoreWriter.open(tmp_path / "s", ABOUT).close()
    with pytest.raises(StoreMismatch, match=r"boundaries: \[1, 3, 5\] then, \[1, 3\] now"):
        StoreWriter.open(tmp_path / "s", about(boundaries=(1, 3)))
    with pytest.raises(StoreMismatch, match=r"source: 'transformers==5.17.0' then, 'vllm==0.25.1' now"):
        StoreWriter.open(tmp_path / "s", about(source="vllm==0.25.1"))
    StoreWriter.open(tmp_path / "s", about(rows="more rows", target={**ABOUT.target, "name_or_path": "/there"})).close()


def test_a_folder_with_other_work_is_not_written(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(OutputExists):
        StoreWriter.open(tmp_path, ABOUT)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_columns_follow_the_asked_order_and_a_missing_boundary_is_named(tmp_path: Path):
    StoreWriter.open(tmp_path / "s", ABOUT).close()
    reader = StoreReader.open(tmp_path / "s")
    assert reader.columns([5, 1]) == [slice(16, 24), slice(0, 8)]
    with pytest.raises(StoreLacksBoundary, match="boundary 4"):
        reader.columns([1, 4])


def test_a_key_is_a_hash_of_the_ids_in_any_container():
    assert row_key([1, 2, 3]) == row_key(np.array([1, 2, 3], np.int32)) != row_key([1, 2])
