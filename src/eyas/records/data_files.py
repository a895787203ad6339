"""Data files to `Conversation`s: JSONL, parquet, arrow, and folders of them. Names the record that it cannot read."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from eyas.errors import EnvironmentMissing, EyasError
from eyas.records.conversation import Conversation
from eyas.records.json_lines import RecordBroken, json_records, open_regular
from eyas.records.record_forms import FIELDS, FormUnknown, conversation_of
from eyas.talk import Talk

_FORM = '{"messages": [{"role": ..., "content": ...}]}'
_TABLES = (".parquet", ".arrow")
_TEST_SPLITS = ("test", "validation", "valid", "val", "dev", "eval")
_TABLE_BATCH = 256  # records in memory at once


class DataMissing(EyasError):
    """A data file is not there."""

    code = "data-missing"


class DataMalformed(EyasError):
    """A data file holds something that is not a conversation. Nothing is skipped: the file may be the wrong one."""

    code = "data-malformed"


def read_conversations(paths: Sequence[Path]) -> Iterator[Conversation]:
    """The records of all files, in order; `Conversation.source` is the index in `paths`.

    Raises:
        DataMalformed: a record is not a conversation; the message says file and line (tables: record number).
        EnvironmentMissing: a parquet or arrow file, and no pyarrow to read it.
    """
    for source, path in enumerate(paths):
        for line, record in data_records(path):
            try:
                yield conversation_of(record, source, line)
            except FormUnknown as error:
                raise _malformed(path, line, str(error)) from error


def list_files(
    paths: Sequence[Path], talk: Talk | None = None, *, all_splits: bool = False, flag: str = "--data"
) -> list[Path]:
    """The data files that `paths` stand for: files as they are, folders by the .jsonl(.gz, .xz), .parquet and .arrow
    in them, as a data set's repository has them or `Dataset.save_to_disk` writes them.

    Args:
        talk: told of files left out.
        all_splits: also take test splits of a folder that has one for training.
        flag: that named the paths.

    Raises:
        DataMissing: a path does not exist, or a folder holds no data file.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.is_file() and _is_data(p))
            if not found:
                raise _missing(flag, path, "it holds no .jsonl, .parquet or .arrow file")
            files += found if all_splits else _for_training(path, found, talk)
        elif path.is_file():
            files.append(path)
        else:
            raise _missing(flag, path, "it does not exist or is not a regular file")
    return files


def _for_training(folder: Path, files: Sequence[Path], talk: Talk | None) -> list[Path]:
    """The files without test splits, where the folder names its splits."""
    splits = [_split_of(path.relative_to(folder)) for path in files]
    if "train" not in splits:
        return list(files)
    left_out = [path.name for path, split in zip(files, splits, strict=True) if split == "test"]
    if left_out and talk is not None:
        talk.note(f"{folder}: {len(left_out)} files of test splits are left out: {', '.join(left_out[:4])}")
    return [path for path, split in zip(files, splits, strict=True) if split != "test"]


def _split_of(path: Path) -> str | None:
    """`train` or `test`, by a folder's name or the prefix of the file's name; None if neither says."""
    for part in path.parts:
        word = re.split(r"[^a-z]", part.lower())[0]
        if word == "train":
            return "train"
        if word in _TEST_SPLITS:
            return "test"
    return None


def _is_data(path: Path) -> bool:
    name = path.name.removesuffix(".gz").removesuffix(".xz")
    return not path.name.startswith(".") and name.endswith((".jsonl", *_TABLES)) and not name.startswith("cache-")


def data_records(path: Path) -> Iterator[tuple[int, Any]]:
    """Each record of a data file with its line, or its number in a table or list.

    Raises:
        DataMalformed: one cannot be read.
        EnvironmentMissing: a parquet or arrow file, and no pyarrow to read it.
    """
    try:
        yield from file_records(path)
    except RecordBroken as error:
        raise _malformed(path, error.line, str(error)) from error


def file_records(path: Path) -> Iterator[tuple[int, Any]]:
    """`data_records` that raises `RecordBroken`, for readers with a message of their own."""
    return _table_records(path) if path.suffix in _TABLES else json_records(path)


def _table_records(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        from pyarrow import ArrowException
    except ImportError as error:
        raise EnvironmentMissing(
            f"{path.suffix} files need pyarrow", str(path), str(error), "pip install pyarrow, or give the data as JSONL"
        ) from error
    number = 0
    try:
        for batch in _table_batches(path):
            for record in batch.to_pylist():
                number += 1
                yield number, _without_nulls(record)
    except (ArrowException, OSError, ValueError, OverflowError, RecursionError) as error:
        raise RecordBroken(number + 1, error) from error


def _table_batches(path: Path) -> Iterator[Any]:
    """Record batches of a parquet file, or of the stream that `Dataset.save_to_disk` writes: of the columns that are
    used, where there are any. Others may be large, or hold dates that Python has no form for."""
    if path.suffix == ".parquet":
        from pyarrow.parquet import ParquetFile

        with open_regular(path) as raw, ParquetFile(raw) as file:
            yield from file.iter_batches(_TABLE_BATCH, columns=_used(file.schema_arrow.names))
    else:
        from pyarrow import ipc

        with open_regular(path) as file, ipc.open_stream(file) as stream:
            used = _used(stream.schema.names)
            yield from stream if used is None else (batch.select(used) for batch in stream)


def _used(names: Sequence[str]) -> list[str] | None:
    """Those of a table's columns that are read; None = all, for the message that none of them is."""
    return [name for name in names if name in FIELDS] or None


def _without_nulls(value: Any) -> Any:
    """Records of a table have every column: a null means that the key is absent."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _missing(flag: str, path: Path, why: str) -> DataMissing:
    return DataMissing(
        f"there is no data in {path}", f"{flag} {path}", why, f"give JSONL files with one conversation a line: {_FORM}"
    )


def _malformed(path: Path, line: int, why: str) -> DataMalformed:
    return DataMalformed(
        f"line {line} of {path.name} is not a conversation",
        f"{path}:{line}",
        why,
        f"correct or remove the line; one JSON object a line: {_FORM}",
    )
