"""Records of JSON files as data comes: a record a line, or one list; plain, .gz or .xz. Knows no fields."""

import errno
import gzip
import json
import lzma
import os
import stat
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

_OPENERS: Mapping[str, Any] = {".xz": lzma.open, ".gz": gzip.open}
_DAMAGES = (EOFError, OSError, lzma.LZMAError, zlib.error)
# Far beyond any record; what is longer is not JSON lines, or would fill the memory before it is known to be useless.
_MOST_LINE_BYTES = 64 << 20
_MOST_LIST_BYTES = 2 << 30
_MOST_BLANK_LINES = 10_000_000  # in a row: a small archive can hold thousands of millions


class RecordBroken(ValueError):
    """A record cannot be read; the text says why.

    Args:
        line: where, from 1.
    """

    def __init__(self, line: int, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.line = line


def json_records(path: Path) -> Iterator[tuple[int, Any]]:
    """Line number and record of each line of a JSONL file (also .gz, .xz) that is not blank; of a .json file that is
    one list, as ShareGPT comes, its entries with their numbers.

    Raises:
        RecordBroken: not JSON, not UTF-8, nested too deep, half of a surrogate pair, too long, a damaged archive; also
            a path that is not a regular file.
    """
    number = last = 0
    try:
        with open_regular(path) as raw, _OPENERS.get(path.suffix, _as_it_is)(raw) as file:
            if _is_list(file, path):
                yield from enumerate(_json_of(_limited(file.read(_MOST_LIST_BYTES + 1), 1, _MOST_LIST_BYTES), 1), 1)
                return
            while line := _limited(file.readline(_MOST_LINE_BYTES + 1), number + 1, _MOST_LINE_BYTES):
                number += 1
                if line.removeprefix(BOM_UTF8).strip():
                    yield number, _json_of(line, number)
                    last = number
                elif number - last > _MOST_BLANK_LINES:
                    raise RecordBroken(number, ValueError(f"{number - last} blank lines in a row"))
    except _DAMAGES as error:
        raise RecordBroken(number + 1, error) from error


def open_regular(path: Path) -> IO[bytes]:
    """The file under `path`, opened without waiting: `OSError` where it is a pipe, a device or a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path) -> bytes:
    """All bytes of a file; `OSError` as `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def json_of(text: str) -> Any:
    """The value that `text` stands for.

    Raises:
        ValueError: not JSON, or with half of a surrogate pair in it, which is not text.
        RecursionError: it is nested too deep.
    """
    value = json.loads(text)
    if "\\ud" in text.lower():
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _as_it_is(file: IO[bytes]) -> IO[bytes]:
    return file


def _limited(data: bytes, number: int, most: int) -> bytes:
    if len(data) > most:
        raise RecordBroken(number, ValueError(f"it is longer than {most >> 20} MiB"))
    return data


def _is_list(file: IO[bytes], path: Path) -> bool:
    if not path.name.removesuffix(path.suffix if path.suffix in _OPENERS else "").endswith(".json"):
        return False
    is_list = file.read(1024).removeprefix(BOM_UTF8).lstrip().startswith(b"[")
    file.seek(0)
    return is_list


def _json_of(data: bytes, number: int) -> Any:
    """The record of line `number`. A byte order mark is not part of it, wherever files that had one were joined."""
    try:
        return json_of(data.removeprefix(BOM_UTF8).decode())
    except (ValueError, RecursionError) as error:
        raise RecordBroken(number, error) from error
