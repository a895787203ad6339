import gzip
import json
import lzma
from pathlib import Path

import pytest

from eyas.records.data_files import DataMalformed, DataMissing, list_files, read_conversations
from eyas.records.record_forms import conversation_of
from eyas.talk import Silent

RECORD = {"id": "x", "messages": [{"role": "user", "content": "ü"}, {"role": "assistant", "content": "a"}]}
LINE = json.dumps(RECORD, ensure_ascii=False)


@pytest.mark.parametrize(("suffix", "opener"), [("", open), (".gz", gzip.open), (".xz", lzma.open)])
def test_plain_and_compressed_files_read_the_same(tmp_path: Path, suffix, opener):
    path = tmp_path / f"data.jsonl{suffix}"
    with opener(path, "wt", encoding="utf-8") as file:
        file.write(f"{LINE}\n\n{LINE}\n")

    found = list(read_conversations([path]))

    assert [(c.source, c.line) for c in found] == [(0, 1), (0, 3)]
    assert found[0].messages == RECORD["messages"]
    assert found[0].is_finished


def test_a_record_may_say_that_its_answer_was_cut_off(tmp_path: Path):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({**RECORD, "finished": False}))
    assert [c.is_finished for c in read_conversations([path])] == [False]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"messages": [', "JSONDecodeError"),
        ("[1, 2]", "the line holds a JSON list, not an object"),
        pytest.param("[" * 200_000, "RecursionError", id="deep"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "surrogates not allowed"),
        ('{"text": "x"}', "there is no list `messages` or `conversations` of objects (keys: text)"),
        ('{"messages": ["x"]}', "there is no list `messages` or `conversations` of objects (keys: messages)"),
    ],
)
def test_a_malformed_line_is_an_error_with_file_and_line_not_a_silent_skip(tmp_path: Path, line, why):
    path = tmp_path / "d.jsonl"
    path.write_text(f"{LINE}\n{line}\n")

    with pytest.raises(DataMalformed) as caught:
        list(read_conversations([path]))

    assert caught.value.where == f"{path}:2"
    assert why in caught.value.why


@pytest.mark.parametrize(("suffix", "opener"), [("", open), (".gz", gzip.open)])
def test_a_json_file_is_one_list_of_records_as_sharegpt_comes(tmp_path: Path, suffix, opener):
    path = tmp_path / f"sharegpt.json{suffix}"
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]
    with opener(path, "wt", encoding="utf-8") as file:
        json.dump([RECORD, {"id": "y", "conversations": turns}], file, indent=2)

    found = list(read_conversations(list_files([path])))

    assert [c.line for c in found] == [1, 2]
    assert found[0].messages == RECORD["messages"]
    assert found[1].messages[1] == {"role": "assistant", "content": "Hello!"}


def test_a_json_file_of_lines_reads_as_lines(tmp_path: Path):
    path = tmp_path / "d.json"
    path.write_text(f"{LINE}\n{LINE}\n")
    assert len(list(read_conversations([path]))) == 2


@pytest.mark.parametrize(
    ("text", "line", "why"), [("[{},", 1, "JSONDecodeError"), (f"[{LINE},\n 3]", 2, "a JSON int, not an object")]
)
def test_a_json_list_that_is_none_or_holds_another_thing_is_named(tmp_path: Path, text: str, line: int, why: str):
    path = tmp_path / "d.json"
    path.write_text(text)
    with pytest.raises(DataMalformed) as caught:
        list(read_conversations([path]))
    assert caught.value.where == f"{path}:{line}"
    assert why in caught.value.why


def test_a_byte_order_mark_is_no_part_of_the_first_record(tmp_path: Path):
    path = tmp_path / "d.jsonl"
    for text in (LINE, f"{LINE}\r\n\ufeff{LINE}", f"\n{LINE}"):  # also of files that were joined
        path.write_text(text, encoding="utf-8-sig", newline="")
        assert all(c.messages == RECORD["messages"] for c in read_conversations([path]))


def test_a_whole_surrogate_pair_is_text(tmp_path: Path):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "😀"}]}))
    assert "\\ud83d" in path.read_text()
    assert [c.messages[0]["content"] for c in read_conversations([path])] == ["😀"]


def damaged(data: bytes) -> bytes:
    return data[:20] + bytes([data[20] ^ 255]) + data[21:]


@pytest.mark.parametrize(
    ("name", "data", "line"),
    [
        ("utf8.jsonl", f"{LINE}\n{LINE}\n".encode() + b'{"messages": "\xff"}\n' + f"{LINE}\n".encode(), 3),
        ("long_number.jsonl", f'{LINE}\n{{"n": {"1" * 5000}}}\n{LINE}'.encode(), 2),
        ("cut.jsonl.xz", lzma.compress((LINE * 50).encode())[:-20], 1),
        ("cut.jsonl.gz", gzip.compress((LINE * 50).encode(), mtime=0)[:-20], 1),
        ("flipped.jsonl.gz", damaged(gzip.compress(f"{LINE}\n{LINE}".encode(), mtime=0)), 1),
        ("flipped.jsonl.xz", damaged(lzma.compress(f"{LINE}\n{LINE}".encode())), 1),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_broken_text_and_damaged_archives_are_malformed_data_of_that_line(tmp_path: Path, name, data, line):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(DataMalformed) as caught:
        list(read_conversations([path]))
    assert caught.value.where == f"{path}:{line}"


def test_a_missing_file_and_an_empty_folder_are_named(tmp_path: Path):
    with pytest.raises(DataMissing, match="there is no data in"):
        list_files([tmp_path / "no.jsonl"])
    with pytest.raises(DataMissing, match=r"it holds no \.jsonl"):
        list_files([tmp_path])


def test_a_folder_stands_for_the_data_files_in_it_in_order(tmp_path: Path):
    for name in ("data/b.jsonl", "data/a.parquet", "c.jsonl.xz", "README.md", "cache-1.arrow", ".hidden.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [str(p.relative_to(tmp_path)) for p in list_files([tmp_path])]
    assert found == ["c.jsonl.xz", "data/a.parquet", "data/b.jsonl"]


def write_table(path: Path, records: list[dict]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.Table.from_pylist(records)
    if path.suffix == ".parquet":
        from pyarrow import parquet

        parquet.write_table(table, path)
    else:
        with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table, max_chunksize=1)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_tables_read_like_lines_and_columns_that_are_null_are_not_there(tmp_path: Path, suffix):
    with_reasoning = {"messages": [RECORD["messages"][0], {**RECORD["messages"][1], "reasoning_content": "hm"}]}
    write_table(tmp_path / f"d{suffix}", [RECORD, with_reasoning])
    first, second = read_conversations([tmp_path / f"d{suffix}"])

    assert first.messages == RECORD["messages"]
    assert second.messages == conversation_of(with_reasoning, 0, 2).messages
    assert second.messages[1]["reasoning_content"] == "hm"
    assert (second.source, second.line) == (0, 2)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_columns_that_nobody_reads_may_hold_what_python_cannot(tmp_path: Path, suffix):
    pyarrow = pytest.importorskip("pyarrow")
    late = pyarrow.scalar(10**14, pyarrow.timestamp("ms")).cast(pyarrow.timestamp("us"))
    write_table(tmp_path / f"d{suffix}", [{**RECORD, "at": late}])
    write_table(tmp_path / f"e{suffix}", [{"at": late}])
    assert [c.messages for c in read_conversations([tmp_path / f"d{suffix}"])] == [RECORD["messages"]]
    with pytest.raises(DataMalformed):
        list(read_conversations([tmp_path / f"e{suffix}"]))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_truncated_table_is_malformed_data(tmp_path: Path, suffix):
    path = tmp_path / f"d{suffix}"
    write_table(path, [RECORD] * 50)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataMalformed):
        list(read_conversations([path]))


def save_to_disk(folder: Path, records: list[dict]) -> None:
    """The layout of `datasets.Dataset.save_to_disk`."""
    folder.mkdir(parents=True)
    write_table(folder / "data-00000-of-00002.arrow", records[:1])
    write_table(folder / "data-00001-of-00002.arrow", records[1:])
    files = [{"filename": f"data-0000{i}-of-00002.arrow"} for i in range(2)]
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_split": None}))
    (folder / "dataset_info.json").write_text("{}")


def test_a_folder_of_save_to_disk_reads_like_its_lines(tmp_path: Path):
    save_to_disk(tmp_path / "set", [RECORD, RECORD, RECORD])
    found = list(read_conversations(list_files([tmp_path / "set"])))
    assert [c.messages for c in found] == [RECORD["messages"]] * 3
    assert [(c.source, c.line) for c in found] == [(0, 1), (1, 1), (1, 2)]


def test_of_a_data_set_with_splits_only_those_for_training_are_read_and_it_is_said(tmp_path: Path):
    save_to_disk(tmp_path / "set" / "train", [RECORD, RECORD])
    save_to_disk(tmp_path / "set" / "test", [RECORD, RECORD])
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    talk = Silent()
    assert {p.parent.name for p in list_files([tmp_path / "set"], talk)} == {"train"}
    assert "2 files of test splits are left out" in talk.notes[0]


def test_a_folder_of_parquet_files_is_read_by_the_names_of_its_splits(tmp_path: Path):
    names = ("data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet", "data/validation.parquet")
    for name in (*names, "training_notes.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [p.name for p in list_files([tmp_path], Silent())]
    assert found == ["train-00000-of-00001.parquet", "training_notes.jsonl"]


def test_a_folder_with_nothing_for_training_is_read_whole(tmp_path: Path):
    for name in ("test.jsonl", "testament.jsonl"):
        (tmp_path / name).touch()
    assert [p.name for p in list_files([tmp_path], Silent())] == ["test.jsonl", "testament.jsonl"]


def test_a_column_of_columns_is_a_list_of_turns(tmp_path: Path):
    columns = {"conversations": {"from": ["human", "gpt"], "value": ["q", "a"]}}
    write_table(tmp_path / "d.parquet", [columns])
    [found] = read_conversations([tmp_path / "d.parquet"])
    assert found.messages == [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
