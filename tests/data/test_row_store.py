import json
from pathlib import Path

import pytest

from eyas.data.row_store import RowArrays, Rows, RowWriter
from eyas.data.tokenise import TokenRow
from eyas.records.rows import MANIFEST, TENSORS, RowsManifest, RowsUnreadable, read_manifest, write_manifest

ROWS = [TokenRow((1, 2, 3), (False, True, True)), TokenRow((4, 5), (False, True))]


def manifest(writer: RowArrays, **changes) -> RowsManifest:
    fields = {
        "fingerprint": "f",
        "tokenizer": "t",
        "template": "c",
        "template_options": {},
        "sources": (),
        "options": {},
        "num_rows": writer.num_rows,
        "num_tokens": writer.num_tokens,
        "num_supervised": writer.num_supervised,
        "longest": writer.longest,
        "dropped": {"too long": 2},
    }
    return RowsManifest(**{**fields, **changes})


def write(folder: Path, **changes) -> Path:
    writer = RowWriter()
    for line, row in enumerate(ROWS):
        writer.add(row, source=0, line=line + 1)
    arrays = writer.arrays()
    arrays.write(folder)
    write_manifest(manifest(arrays, **changes), folder)
    return folder


def test_rows_come_back_as_they_were_written(tmp_path: Path):
    rows = Rows(write(tmp_path))

    assert list(rows) == ROWS
    assert [rows.length(i) for i in range(2)] == [3, 2]
    assert rows.supervised_counts(8).tolist() == [0, 0, 1, 1, 0, 1, 0, 0]
    assert (rows.manifest.num_supervised, rows.manifest.longest) == (3, 3)
    with pytest.raises(IndexError):
        rows[2]


def test_a_manifest_that_disagrees_with_the_arrays_is_damage(tmp_path: Path):
    with pytest.raises(RowsUnreadable, match=r"says \(2, 6, 3\)"):
        Rows(write(tmp_path, num_tokens=6))


def test_a_truncated_array_file_is_damage(tmp_path: Path):
    path = write(tmp_path) / TENSORS
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(RowsUnreadable):
        Rows(tmp_path)


def test_another_schema_and_no_folder_are_told_apart_from_rows(tmp_path: Path):
    write(tmp_path)
    document = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps({**document, "schema": "eyas.rows/9"}))
    with pytest.raises(RowsUnreadable, match="rows/9"):
        read_manifest(tmp_path)
    with pytest.raises(RowsUnreadable, match="eyas prepare"):
        read_manifest(tmp_path / "nowhere")
