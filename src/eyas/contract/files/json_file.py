"""Small JSON files, read strictly: size limit, UTF-8, no key twice, no bomb. Knows nothing of what they mean."""

import json
from pathlib import Path
from typing import Any

from eyas.contract.files.git_lfs import refuse_pointer
from eyas.errors import EyasError

MAX_DEPTH = 64  # configs of models nest five levels
JSON_LIMIT_BYTES = 64 << 20  # the index of a 1 T-parameter target is about 10 MB


class FileUnreadable(EyasError):
    """A file that is named but is missing, is not a regular file, or may not be read."""

    code = "file-unreadable"


class JsonInvalid(EyasError):
    """A file that should be JSON is not."""

    code = "json-invalid"


class JsonDuplicateKey(EyasError):
    """The same key twice in one object: readers disagree on which counts."""

    code = "json-duplicate-key"


class JsonTooLarge(EyasError):
    """A JSON file too large for what its name says it is."""

    code = "json-too-large"


class _DuplicateKey(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        raise _DuplicateKey(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
    return found


def _is_deeper(value: Any, depth: int) -> bool:
    """Containers are nested more than `depth` levels: what walks them by recursion must not run out of stack."""
    level = [value]
    while level and depth >= 0:
        inner = (part for item in level for part in (item.values() if isinstance(item, dict) else item))
        level = [part for part in inner if isinstance(part, dict | list)] if isinstance(level[0], dict | list) else []
        depth -= 1
    return bool(level)


def parse_json(data: bytes, where: str) -> Any:
    """The JSON value in `data`.

    Args:
        data: UTF-8 text.
        where: what to call it in an error.

    Raises:
        JsonInvalid: not UTF-8, not JSON, half of a surrogate pair, nested too deeply, or a number too long.
        JsonDuplicateKey: an object has a key twice.
        GitLfsPointer: it is a pointer to the text.
    """
    refuse_pointer(data, where)
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
        if _is_deeper(value, MAX_DEPTH):
            raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
        if b"\\ud" in data or b"\\uD" in data:
            json.dumps(value, ensure_ascii=False).encode()  # half of a pair of escapes is not text: UnicodeEncodeError
        return value
    except _DuplicateKey as error:
        raise JsonDuplicateKey(
            f"key {str(error)!r} occurs twice",
            where,
            "one reader takes the first value and another the last",
            f"keep one of the two {str(error)!r} entries",
        ) from None
    except (ValueError, RecursionError) as error:  # Unicode… and JSONDecodeError are ValueErrors
        raise JsonInvalid(
            "not valid JSON", where, f"{type(error).__name__}: {str(error)[:200]}", "restore or download the file again"
        ) from None


def read_json(path: Path, *, limit_bytes: int = JSON_LIMIT_BYTES) -> Any:
    """The JSON value in the file `path`.

    Raises:
        FileUnreadable: missing, no regular file, or not readable.
        JsonTooLarge: larger than `limit_bytes`; nothing was read.
        JsonInvalid, JsonDuplicateKey: as in `parse_json`.
    """
    try:
        if not path.is_file():
            raise unreadable(path, "it is missing, or not a regular file")
        size = path.stat().st_size
        if size > limit_bytes:
            raise JsonTooLarge(
                f"{path.name} is {size} bytes",
                str(path),
                f"the limit for this kind of file is {limit_bytes} bytes",
                "check that it is the right file",
            )
        return parse_json(path.read_bytes(), str(path))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise unreadable(path, str(error)) from None


def read_json_object(path: Path, *, limit_bytes: int = JSON_LIMIT_BYTES) -> dict[str, Any]:
    """As `read_json`, but it must be an object."""
    value = read_json(path, limit_bytes=limit_bytes)
    if not isinstance(value, dict):
        raise JsonInvalid(
            f"{path.name} is not a JSON object",
            str(path),
            f"it holds a {type(value).__name__}",
            "restore or download the file again",
        )
    return value


def unreadable(path: Path, reason: str) -> FileUnreadable:
    """The `FileUnreadable` for `path`."""
    return FileUnreadable(f"cannot read {path.name}", str(path), reason, "check the path and its permissions")
