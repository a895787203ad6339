import gzip
import json

import pytest

from eyas.records.eval_rows import (
    EvalDataEmpty,
    EvalDataMissing,
    EvalPrompt,
    EvalRow,
    EvalRowMalformed,
    read_eval_rows,
    write_eval_rows,
)

RECORDED = {"id": "a", "set": "chat", "prompt_ids": [1, 2], "response_ids": [3]}


def file_of(tmp_path, *records, name="rows.jsonl"):
    path = tmp_path / name
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in records) + "\n")
    return path


def test_the_three_kinds_of_row(tmp_path):
    conversation = {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "old answer"},
        ],
        "tools": '[{"name": "f"}]',
    }
    path = file_of(tmp_path, RECORDED, conversation, "", {"turns": ["first", "second"], "id": 7}, name="mt.v1.jsonl")

    recorded, conversation_row, turns = read_eval_rows([path])

    assert recorded == EvalRow(id="a", set="chat", prompt_ids=(1, 2), response_ids=(3,))
    assert isinstance(conversation_row, EvalPrompt)
    assert [m["content"] for m in conversation_row.messages] == ["s", "q"]
    assert conversation_row.tools == [{"name": "f"}]
    assert (conversation_row.id, conversation_row.set) == ("mt:2", "mt")
    assert turns == EvalPrompt(id="7", set="mt", messages=({"role": "user", "content": "first"},))


def test_rows_written_are_the_rows_read(tmp_path):
    rows = [EvalRow(id=str(i), set="ü", prompt_ids=(i, 1), response_ids=(2,)) for i in range(3)]

    write_eval_rows(rows, tmp_path / "out.jsonl")

    assert read_eval_rows([tmp_path / "out.jsonl"]) == rows
    assert read_eval_rows([tmp_path / "out.jsonl"], max_rows=2) == rows[:2]


def test_compressed_files_are_read(tmp_path):
    with gzip.open(tmp_path / "rows.jsonl.gz", "wt") as file:
        file.write(json.dumps(RECORDED))

    assert len(read_eval_rows([tmp_path / "rows.jsonl.gz"])) == 1


@pytest.mark.parametrize(
    "bad",
    [
        '{"prompt_ids": [1',
        "[1, 2]",
        {"prompt_ids": [1]},
        {"prompt_ids": [], "response_ids": [1]},
        {"prompt_ids": [1], "response_ids": [-1]},
        {"prompt_ids": [1], "response_ids": [True]},
        {"messages": [{"role": "assistant", "content": "no question"}]},
        {"messages": [{"role": "user"}]},
        {"messages": "text"},
        {"turns": []},
        {"turns": ["a"], "tools": "abc"},
        {"text": "hello"},
        {"turns": "abc"},
        {**RECORDED, "id": {"a": 1}},
        {**RECORDED, "set": [1]},
    ],
)
def test_a_line_of_no_known_kind_is_refused_by_file_and_line(tmp_path, bad):
    path = file_of(tmp_path, RECORDED, bad)

    with pytest.raises(EvalRowMalformed) as caught:
        read_eval_rows([path])

    assert caught.value.where == f"{path}:2"


def test_no_file_and_no_rows_are_different_errors(tmp_path):
    with pytest.raises(EvalDataMissing):
        read_eval_rows([tmp_path / "nothing.jsonl"])
    with pytest.raises(EvalDataEmpty):
        read_eval_rows([file_of(tmp_path, "")])


def test_a_byte_order_mark_is_no_error(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\ufeff" + json.dumps(RECORDED) + "\r\n", encoding="utf-8")
    assert len(read_eval_rows([path])) == 1


@pytest.mark.parametrize(
    "line", ['{"turns": ["\\ud800"]}', "[" * 100_000, '{"turns": ["a"], "id": ' + "9" * 5000 + "}"]
)
def test_what_json_allows_and_nothing_can_hold_is_a_malformed_row(tmp_path, line):
    with pytest.raises(EvalRowMalformed, match="line 2 of"):
        read_eval_rows([file_of(tmp_path, json.dumps(RECORDED), line)])


def test_a_damaged_archive_is_a_malformed_row(tmp_path):
    data = bytearray(gzip.compress(json.dumps(RECORDED).encode() * 3, mtime=0))
    data[20] ^= 255
    (tmp_path / "rows.jsonl.gz").write_bytes(data)
    with pytest.raises(EvalRowMalformed):
        read_eval_rows([tmp_path / "rows.jsonl.gz"])


def test_a_whole_pair_of_surrogate_escapes_is_text(tmp_path):
    (row,) = read_eval_rows([file_of(tmp_path, '{"turns": ["\\ud83d\\ude00"]}')])
    assert row.messages[0]["content"] == "\U0001f600"
