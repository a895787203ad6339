"""Fingerprints: short content hashes that travel from data to draft to server."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

_SLICE_BYTES = 1 << 22


def of_bytes(data: bytes) -> str:
    """First 16 hex digits of SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]


def of_json(value: object) -> str:
    """Fingerprint of a JSON value, independent of key order and spacing."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return of_bytes(text.encode(errors="surrogatepass"))  # a path may hold bytes that are not text


def of_parts(parts: Iterable[bytes]) -> str:
    """Fingerprint of all parts together, as if they were one."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def of_file(path: Path) -> str:
    """Fingerprint of a file's bytes, read in slices."""
    return of_files([path])


def of_files(paths: Iterable[Path]) -> str:
    """Fingerprint of several files' bytes in the given order."""
    return of_parts(part for path in paths for part in _slices(path))


def _slices(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while part := file.read(_SLICE_BYTES):
            yield part
