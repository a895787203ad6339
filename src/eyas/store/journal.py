"""The index of a shard that still grows: one checked entry per row, appended after the row's states.

entry    magic, bytes of the body (u32), first 16 bytes of the body's SHA-256, the body
body     n, first, flags (u32 each; 1 = is_supervised follows, 2 = scales follow), the row's digest [16],
         token_ids I32 [n], is_supervised U8 [n], scales F32 [P, A + 1]
"""

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from eyas.records.json_lines import open_regular
from eyas.store.about import StoreAbout
from eyas.store.row import DIGEST_BYTES, StoreRow

_FRAME, _HEAD = struct.Struct("<4sI16s"), struct.Struct("<III16s")
_MAGIC = b"EYJ1"
_HAS_FLAGS, _HAS_SCALES = 1, 2
_MOST_BODY = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of a journal.

    Attributes:
        row: without its states (an empty array of the right length and no width).
        digest: of the states.
        end: bytes of the journal up to and with this entry.
    """

    row: StoreRow
    digest: bytes
    end: int


def entry_bytes(row: StoreRow, digest: bytes) -> bytes:
    """The entry of one row."""
    flags = _HAS_FLAGS * (row.is_supervised is not None) | _HAS_SCALES * (row.scales is not None)
    parts = [_HEAD.pack(len(row.token_ids), row.first, flags, digest), row.token_ids.astype("<i4").tobytes()]
    parts += [] if row.is_supervised is None else [row.is_supervised.astype(np.bool_).tobytes()]
    parts += [] if row.scales is None else [row.scales.astype("<f4").tobytes()]
    body = b"".join(parts)
    return _FRAME.pack(_MAGIC, len(body), hashlib.sha256(body).digest()[:DIGEST_BYTES]) + body


def read_journal(path: Path, about: StoreAbout) -> Iterator[Entry]:
    """Its entries up to the first that is torn or damaged; `OSError` where it cannot be read."""
    at = 0
    with open_regular(path) as file:
        while (body := _body(file)) is not None and (found := _parsed(body, about)) is not None:
            at += _FRAME.size + len(body)
            yield Entry(row=found[0], digest=found[1], end=at)


def _body(file: IO[bytes]) -> bytes | None:
    head = file.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return None
    magic, num_bytes, digest = _FRAME.unpack(head)
    if magic != _MAGIC or num_bytes > _MOST_BODY:
        return None
    body = file.read(num_bytes)
    return body if hashlib.sha256(body).digest()[:DIGEST_BYTES] == digest and len(body) == num_bytes else None


def _parsed(body: bytes, about: StoreAbout) -> tuple[StoreRow, bytes] | None:
    """The row that a body stands for; None where its parts do not fit each other."""
    if len(body) < _HEAD.size:
        return None
    num, first, flags, digest = _HEAD.unpack_from(body)
    has_flags, has_scales = bool(flags & _HAS_FLAGS), bool(flags & _HAS_SCALES)
    positions = num - first
    num_scales = positions * about.num_states * has_scales
    if positions < 1 or has_scales != about.has_scales or flags > (_HAS_FLAGS | _HAS_SCALES):
        return None
    if len(body) != _HEAD.size + 4 * num + num * has_flags + 4 * num_scales:
        return None
    ids = np.frombuffer(body, "<i4", num, _HEAD.size)
    if not 0 <= int(ids.min()) <= int(ids.max()) < about.vocab_size:
        return None
    at = _HEAD.size + 4 * num
    supervised = np.frombuffer(body, np.uint8, num, at) == 1 if has_flags else None
    scales = np.frombuffer(body, "<f4", num_scales, at + num * has_flags).reshape(positions, -1) if has_scales else None
    states = np.zeros((positions, 0), about.numpy_dtype)
    return StoreRow(token_ids=ids, states=states, first=first, is_supervised=supervised, scales=scales), digest
