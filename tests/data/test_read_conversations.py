import gzip
import json
import lzma
from pathlib import Path

import pytest

from eyas.data.read_conversations import DataMalformed, DataMissing, read_conversations

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
        ('{"text": "x"}', "there is no list `messages` of objects (keys: text)"),
        ('{"messages": ["x"]}', "there is no list `messages` of objects (keys: messages)"),
    ],
)
def test_a_malformed_line_is_an_error_with_file_and_line_not_a_silent_skip(tmp_path: Path, line, why):
    path = tmp_path / "d.jsonl"
    path.write_text(f"{LINE}\n{line}\n")

    with pytest.raises(DataMalformed) as caught:
        list(read_conversations([path]))

    assert caught.value.where == f"{path}:2"
    assert why in caught.value.why


def test_broken_utf8_and_truncated_archives_are_malformed_data(tmp_path: Path):
    broken, cut = tmp_path / "a.jsonl", tmp_path / "b.jsonl.xz"
    broken.write_bytes(LINE.encode() + b'\n{"messages": "\xff"}\n')
    cut.write_bytes(lzma.compress((LINE * 50).encode())[:-20])
    for path in (broken, cut):
        with pytest.raises(DataMalformed):
            list(read_conversations([path]))


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(DataMissing, match="there is no data file"):
        list(read_conversations([tmp_path / "no.jsonl"]))
