"""A manifest of rows reads back as written, and counts that cannot be are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from eyas.records.rows import MANIFEST, RowsManifest, RowsUnreadable, Source, read_manifest, write_manifest

GOOD = RowsManifest(
    fingerprint="f",
    tokenizer="t",
    template="p",
    template_options={},
    sources=(Source(name="a", fingerprint="b", num_records=3),),
    options={},
    num_rows=2,
    num_tokens=9,
    num_supervised=4,
    longest=5,
    dropped={"too long": 1},
)


def test_a_manifest_reads_back_as_written(tmp_path: Path):
    write_manifest(GOOD, tmp_path)

    assert read_manifest(tmp_path) == GOOD


@pytest.mark.parametrize("value", [-1, 10**30, 1.5, "1", None, True, float("nan")])
@pytest.mark.parametrize(
    "place", [("num_rows",), ("longest",), ("rules",), ("dropped", "too long"), ("sources", 0, "num_records")]
)
def test_a_count_that_cannot_be_is_refused(place: tuple[str | int, ...], value: object, tmp_path: Path):
    write_manifest(GOOD, tmp_path)
    document = json.loads((tmp_path / MANIFEST).read_text())
    part: Any = document
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value
    (tmp_path / MANIFEST).write_text(json.dumps(document))

    with pytest.raises(RowsUnreadable):
        read_manifest(tmp_path)
