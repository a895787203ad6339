import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from eyas.data.rows.row_store import RowArrays, Rows, RowWriter
from eyas.data.text.tokenise import TokenRow
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
    with pytest.raises(RowsUnreadable, match=r"says num_tokens = 6; rows\.safetensors has 5"):
        Rows(write(tmp_path, num_tokens=6))


def test_a_truncated_array_file_is_damage(tmp_path: Path):
    path = write(tmp_path) / TENSORS
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(RowsUnreadable):
        Rows(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("token_ids", lambda ids: ids.astype(np.float32), "float32"),
        ("token_ids", lambda ids: -ids.astype(np.int32), "negative"),
        ("is_supervised", lambda flags: flags.astype(np.uint8), "uint8"),
        ("is_supervised", lambda flags: np.concatenate([flags, [False]]), "one entry per token"),
        ("row_starts", lambda starts: starts.astype(np.float32), "float32"),
        ("row_starts", lambda starts: starts * 0, "does not divide"),
        ("row_starts", lambda starts: starts[[0, 2, 1]], "does not divide"),
        ("row_starts", lambda starts: starts - 1, "does not divide"),
        ("row_starts", lambda starts: np.array([0, 10**12, 5]), "does not divide"),
        ("row_starts", lambda starts: starts[:0], "does not divide"),
        ("row_starts", lambda starts: np.array([0, 4, 5]), "longest"),
    ],
)
def test_arrays_that_are_no_rows_are_damage(tmp_path: Path, name: str, change, why: str):
    tensors = load_file(write(tmp_path) / TENSORS)
    save_file({**tensors, name: change(tensors[name])}, tmp_path / TENSORS)
    with pytest.raises(RowsUnreadable, match=why):
        Rows(tmp_path)


def test_token_ids_that_the_target_does_not_have_are_damage(tmp_path: Path):
    rows = Rows(write(tmp_path))
    rows.require_within(6)
    with pytest.raises(RowsUnreadable, match="token id 5"):
        rows.require_within(5)


@pytest.mark.parametrize("text", ["[]", '"a"', "[" * 100_000, "{"])
def test_a_manifest_that_is_no_object_is_damage(tmp_path: Path, text: str):
    (write(tmp_path) / MANIFEST).write_text(text)
    with pytest.raises(RowsUnreadable):
        read_manifest(tmp_path)


def test_another_schema_and_no_folder_are_told_apart_from_rows(tmp_path: Path):
    write(tmp_path)
    document = json.loads((tmp_path / MANIFEST).read_text())
    for change in ({"options": [1]}, {"template_options": None}, {"dropped": 3}):
        (tmp_path / MANIFEST).write_text(json.dumps(document | change))
        with pytest.raises(RowsUnreadable, match="is not an object"):
            read_manifest(tmp_path)
    source = {"name": "d", "fingerprint": "f", "num_records": 1}
    for change, why in (
        ({"num_supervised": []}, r"`num_supervised` is \[\]"),
        ({"num_tokens": ""}, "`num_tokens` is ''"),
        ({"sources": [{**source, "weight": {"a": 1}}]}, "`weight` is {'a': 1}"),
        ({"dropped": {"x": None}}, "other than counts"),
    ):
        (tmp_path / MANIFEST).write_text(json.dumps(document | change))
        with pytest.raises(RowsUnreadable, match=why):
            read_manifest(tmp_path)
    (tmp_path / MANIFEST).write_text(json.dumps({**document, "schema": "eyas.rows/9"}))
    with pytest.raises(RowsUnreadable, match="rows/9"):
        read_manifest(tmp_path)
    with pytest.raises(RowsUnreadable, match="eyas prepare"):
        read_manifest(tmp_path / "nowhere")
