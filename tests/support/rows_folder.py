"""A folder of tokenised rows for a target without a tokenizer."""

from collections.abc import Sequence
from pathlib import Path

from eyas.data.rows.row_store import ROW_COUNTS, RowWriter
from eyas.data.text.tokenise import TokenRow
from eyas.records.rows import RowsManifest, write_manifest


def write_rows(folder: Path, rows: Sequence[TokenRow]) -> Path:
    writer = RowWriter()
    for line, row in enumerate(rows):
        writer.add(row, 0, line + 1)
    arrays = writer.arrays()
    folder.mkdir(parents=True)
    arrays.write(folder)
    manifest = RowsManifest(
        fingerprint="0123456789abcdef",
        tokenizer="unknown",
        template="unknown",
        template_options={},
        sources=(),
        options={},
        dropped={},
        **{name: getattr(arrays, name) for name in ROW_COUNTS},
    )
    write_manifest(manifest, folder)
    return folder
