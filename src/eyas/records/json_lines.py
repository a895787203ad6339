"""Records of JSON files as data comes: a record a line, or one list; plain, .gz or .xz. Knows no fields."""

import gzip
import json
import lzma
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

_OPENERS: Mapping[str, Any] = {".xz": lzma.open, ".gz": gzip.open}
_DAMAGES = (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error)


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
        RecordBroken: no JSON, no UTF-8, JSON nested too deep, half of a surrogate pair, a damaged archive.
    """
    number = 0
    with _OPENERS.get(path.suffix, open)(path, "rb") as file:
        try:
            if _is_list(file, path):
                yield from enumerate(_json_of(file.read(), 1), start=1)
                return
            for number, line in enumerate(file, start=1):
                if line.removeprefix(BOM_UTF8).strip():
                    yield number, _json_of(line, number)
        except _DAMAGES as error:
            raise RecordBroken(number + 1, error) from error


def json_of(text: str) -> Any:
    """The value that `text` stands for.

    Raises:
        ValueError: no JSON, or half of a surrogate pair in it, which is no text.
        RecursionError: it is nested too deep.
    """
    value = json.loads(text)
    if "\\ud" in text.lower():
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _is_list(file: IO[bytes], path: Path) -> bool:
    if not path.name.removesuffix(path.suffix if path.suffix in _OPENERS else "").endswith(".json"):
        return False
    is_list = file.read(1024).removeprefix(BOM_UTF8).lstrip().startswith(b"[")
    file.seek(0)
    return is_list


def _json_of(data: bytes, number: int) -> Any:
    """The record of line `number`. Files with a byte order mark may have been joined: it is no part of any line."""
    try:
        return json_of(data.removeprefix(BOM_UTF8).decode())
    except (ValueError, RecursionError) as error:
        raise RecordBroken(number, error) from error
