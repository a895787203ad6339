"""Data files to `Conversation`s: JSONL with `messages`, plain or compressed. Refuses what it cannot read, by line."""

import gzip
import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

from eyas.data.conversation import Conversation
from eyas.errors import EyasError

_OPENERS: Mapping[str, Any] = {".xz": lzma.open, ".gz": gzip.open}


class DataMissing(EyasError):
    """A data file is not there."""

    code = "data-missing"


class DataMalformed(EyasError):
    """A data file holds something that is no conversation. Nothing is skipped: the file may be the wrong one."""

    code = "data-malformed"


def read_conversations(paths: Sequence[Path]) -> Iterator[Conversation]:
    """The records of all files, in order.

    Raises:
        DataMissing: a path does not exist.
        DataMalformed: a line is no JSON object with a list `messages`; the message says file and line.
    """
    require_files(paths)
    for source, path in enumerate(paths):
        for line, record in _records(path):
            yield _conversation(record, source, line, path)


def require_files(paths: Sequence[Path]) -> None:
    """Raise `DataMissing` for the first path that is no file."""
    for path in paths:
        if not path.is_file():
            raise DataMissing(
                f"there is no data file {path}",
                f"--data {path}",
                "it does not exist or is no file",
                'give JSONL files with one conversation a line: {"messages": [{"role": ..., "content": ...}]}',
            )


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    with cast(IO[str], _OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8")) as file:
        number = 0
        try:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield number, json.loads(text)
        except (ValueError, lzma.LZMAError, EOFError, gzip.BadGzipFile) as error:
            # A UnicodeDecodeError comes before its line is counted.
            line = number if isinstance(error, json.JSONDecodeError) else number + 1
            raise _malformed(path, line, f"{type(error).__name__}: {error}") from error


def _conversation(record: Any, source: int, line: int, path: Path) -> Conversation:
    if not isinstance(record, dict):
        raise _malformed(path, line, f"the line holds a JSON {type(record).__name__}, not an object")
    messages = record.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        keys = ", ".join(sorted(record)[:8])
        raise _malformed(path, line, f"there is no list `messages` of objects (keys: {keys})")
    return Conversation(
        messages=messages,
        source=source,
        line=line,
        is_finished=record.get("finished", True) is not False,
        tools=record.get("tools"),
    )


def _malformed(path: Path, line: int, why: str) -> DataMalformed:
    return DataMalformed(
        f"line {line} of {path.name} is no conversation",
        f"{path}:{line}",
        why,
        'correct or remove the line; one JSON object a line: {"messages": [{"role": ..., "content": ...}]}',
    )
