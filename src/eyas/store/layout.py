"""A shard: one safetensors file whose header has a fixed size, so that states can be written before it is known.

    bytes 0 … 4095   the header, JSON filled up with spaces (the format allows it)
    states           [P, (A + 1) * Ht] of all rows, one after the other
    the index        row_starts I64 [R + 1] into token_ids; scales F32 [P, A + 1] (fp8 only); row_first I32 [R];
                     token_ids I32 [N]; is_supervised U8 [N] (0, 1, 2 = not known); row_keys, row_digests U8 [R, 16]

A row's digest covers its states, the header's hash covers index and header: no bit can turn unseen. What a header
must say follows from three counts, so it is compared, not interpreted.
Shapes: R rows, N tokens, P positions with states, A boundaries, Ht hidden size.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eyas.errors import EyasError
from eyas.records import fingerprint
from eyas.records.json_lines import json_of, open_regular
from eyas.store.about import SCHEMA, StoreAbout
from eyas.store.row import DIGEST_BYTES, IS_UNKNOWN, KEY_BYTES, StoreRow, row_key

HEAD_BYTES = 4096
_LENGTH_BYTES = 8
_METADATA = "eyas"
_TENSOR_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float8_e4m3": "F8_E4M3"}
_NUMPY = {"I64": "<i8", "F32": "<f4", "I32": "<i4", "U8": "u1"}
_Sections = Mapping[str, tuple[str, tuple[int, ...]]]


class StoreDamaged(EyasError):
    """A shard of the store is not as it was written."""

    code = "store-damaged"


def damaged(path: Path, why: str) -> StoreDamaged:
    """The error for the shard in `path`."""
    return StoreDamaged(
        f"shard {path.name} of the store is damaged",
        str(path),
        why,
        f"remove what is damaged with `eyas store drop {path.parent} --damaged`, then run the extraction again: it "
        "computes only the rows that are missing",
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardIndex:
    """What a shard holds beside the states.

    Attributes:
        row_starts: int64 [R + 1]: row r is token_ids[row_starts[r] : row_starts[r + 1]].
        row_first: int32 [R], see `StoreRow.first`.
        token_ids: int32 [N].
        is_supervised: uint8 [N]: 0, 1, or 2 where it is not known.
        row_keys, row_digests: uint8 [R, 16].
        scales: float32 [P, A + 1] or None.
        source: what computed the states.
    """

    row_starts: "NDArray[np.int64]"
    row_first: "NDArray[np.int32]"
    token_ids: "NDArray[np.int32]"
    is_supervised: "NDArray[np.uint8]"
    row_keys: "NDArray[np.uint8]"
    row_digests: "NDArray[np.uint8]"
    scales: "NDArray[np.float32] | None"
    source: str

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.row_first)

    @property
    def lengths(self) -> "NDArray[np.int64]":
        """Tokens of each row, [R]."""
        return np.diff(self.row_starts)

    def state_starts(self) -> "NDArray[np.int64]":
        """[R + 1]: where the states of a row begin among the P positions."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths - self.row_first)])

    def key_list(self) -> list[str]:
        """The rows' names, in order."""
        return [bytes(key).hex() for key in self.row_keys]

    def row(self, number: int, at: int, states: "NDArray[Any]") -> StoreRow:
        """Row `number`, whose `states` begin at position `at` of the shard."""
        part = slice(int(self.row_starts[number]), int(self.row_starts[number + 1]))
        flags = self.is_supervised[part]
        return StoreRow(
            token_ids=self.token_ids[part],
            states=states,
            first=int(self.row_first[number]),
            is_supervised=None if len(flags) and flags[0] == IS_UNKNOWN else flags.view(np.bool_),
            scales=None if self.scales is None else self.scales[at : at + len(states)],
        )


def index_of(rows: list[StoreRow], digests: list[bytes], about: StoreAbout, source: str) -> ShardIndex:
    """The index of `rows` (their states may be empty arrays: only lengths and scales are looked at)."""
    lengths = [len(row.token_ids) for row in rows]
    flags = [
        np.full(len(r.token_ids), IS_UNKNOWN, np.uint8) if r.is_supervised is None else r.is_supervised for r in rows
    ]
    scales = [row.scales for row in rows if row.scales is not None]
    return ShardIndex(
        row_starts=np.cumsum([0, *lengths], dtype=np.int64),
        row_first=np.array([row.first for row in rows], np.int32),
        token_ids=np.concatenate([np.zeros(0, np.int32), *(row.token_ids for row in rows)]),
        is_supervised=np.concatenate([np.zeros(0, np.uint8), *flags]).astype(np.uint8),
        row_keys=np.frombuffer(b"".join(bytes.fromhex(r.key) for r in rows), np.uint8).reshape(-1, KEY_BYTES),
        row_digests=np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES),
        scales=np.concatenate([np.zeros((0, about.num_states), np.float32), *scales]) if about.has_scales else None,
        source=source,
    )


def index_bytes(index: ShardIndex, about: StoreAbout) -> tuple[bytes, bytes]:
    """The header (4096 bytes) and the bytes after the states of a finished shard."""
    counts = (int(index.state_starts()[-1]), len(index.token_ids), index.num_rows)
    names = [name for name in _sections(about, *counts) if name != "states"]
    tail = b"".join(
        np.ascontiguousarray(getattr(index, n), _NUMPY[_sections(about, *counts)[n][0]]).tobytes() for n in names
    )
    return _header(about, index.source, counts, tail), tail


def read_index(path: Path, about: StoreAbout) -> ShardIndex:
    """The index of the finished shard in `path`, all of it checked; no states are read.

    Raises:
        StoreDamaged: it is not a shard of a store that `about` describes, or a bit of header or index has turned.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(HEAD_BYTES)
            source, counts = _stated(head, size)
            sections = _sections(about, *counts)
            begin = HEAD_BYTES + counts[0] * about.width * about.numpy_dtype.itemsize
            if size != HEAD_BYTES + sum(map(_num_bytes, sections.values())):
                raise ValueError(f"it has {size} bytes, which do not fit what it holds: {counts}")
            file.seek(begin)
            tail = file.read()
        if head != _header(about, source, counts, tail):
            raise ValueError("its header or its index was changed, or it belongs to another store")
        arrays, at = dict[str, Any](), 0
        for name, section in list(sections.items())[1:]:
            dtype, shape = section
            arrays[name] = np.frombuffer(tail, _NUMPY[dtype], prod(shape), at).reshape(shape)
            at += _num_bytes(section)
        index = ShardIndex(source=source, **{"scales": None, **arrays})
        if why := _why_impossible(index, counts[0], about):
            raise ValueError(why)
        return index
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def _sections(about: StoreAbout, positions: int, tokens: int, rows: int) -> _Sections:
    scales: _Sections = {"scales": ("F32", (positions, about.num_states))} if about.has_scales else {}
    return {
        "states": (_TENSOR_DTYPES[about.dtype], (positions, about.width)),
        "row_starts": ("I64", (rows + 1,)),
        **scales,
        "row_first": ("I32", (rows,)),
        "token_ids": ("I32", (tokens,)),
        "is_supervised": ("U8", (tokens,)),
        "row_keys": ("U8", (rows, KEY_BYTES)),
        "row_digests": ("U8", (rows, DIGEST_BYTES)),
    }


def _num_bytes(section: tuple[str, tuple[int, ...]]) -> int:
    widths = {"I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2}
    return prod(section[1]) * widths.get(section[0], 1)


def _header(about: StoreAbout, source: str, counts: tuple[int, int, int], tail: bytes) -> bytes:
    said = {"schema": SCHEMA, "fits": about.fits, "source": source, "counts": list(counts)}
    said["hash"] = fingerprint.of_parts([json.dumps(said, sort_keys=True).encode(), tail])
    entries: dict[str, Any] = {"__metadata__": {_METADATA: json.dumps(said, sort_keys=True)}}
    at = 0
    for name, section in _sections(about, *counts).items():
        entries[name] = {"dtype": section[0], "shape": list(section[1]), "data_offsets": [at, at + _num_bytes(section)]}
        at += _num_bytes(section)
    text = json.dumps(entries).encode()
    assert len(text) <= HEAD_BYTES - _LENGTH_BYTES, f"a header of {len(text)} bytes"
    return (HEAD_BYTES - _LENGTH_BYTES).to_bytes(_LENGTH_BYTES, "little") + text.ljust(HEAD_BYTES - _LENGTH_BYTES)


def _stated(head: bytes, size: int) -> tuple[str, tuple[int, int, int]]:
    """Source and counts that a header states."""
    if int.from_bytes(head[:_LENGTH_BYTES], "little") != HEAD_BYTES - _LENGTH_BYTES or len(head) < HEAD_BYTES:
        raise ValueError("it does not begin as a shard does")
    said = json_of(json_of(head[_LENGTH_BYTES:].decode())["__metadata__"][_METADATA])
    source, counts = said["source"], said["counts"]
    if not isinstance(source, str) or not isinstance(counts, list) or len(counts) != 3:
        raise ValueError("its header does not say what it holds")
    if not all(type(count) is int and 0 <= count <= size for count in counts):
        raise ValueError(f"its header states {str(counts)[:80]} positions, tokens and rows; it has {size} bytes")
    return source, (counts[0], counts[1], counts[2])


def _why_impossible(index: ShardIndex, positions: int, about: StoreAbout) -> str | None:
    """What is wrong with an index whose hash is right (one that a stranger made); None if nothing is."""
    starts, first, ids = index.row_starts, index.row_first, index.token_ids
    if starts[0] != 0 or starts[-1] != len(ids) or not (index.lengths > 0).all():
        return "row_starts does not divide its tokens into rows"
    if not ((first >= 0) & (first < index.lengths)).all() or int(index.state_starts()[-1]) != positions:
        return "row_first does not fit its rows and states"
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < about.vocab_size:
        return f"token ids go from {ids.min()} to {ids.max()}; the target has {about.vocab_size}"
    if int(index.is_supervised.max(initial=0)) > IS_UNKNOWN:
        return "is_supervised holds something other than 0, 1 and 2"
    unknown = np.add.reduceat(index.is_supervised == IS_UNKNOWN, starts[:-1], dtype=np.int64) if len(first) else first
    if not ((unknown == 0) | (unknown == index.lengths)).all():
        return "is_supervised is known for a part of a row"
    made = (row_key(ids[a:b]) for a, b in pairwise(starts))
    return None if index.key_list() == list(made) else "a row's key is not that of its token ids"
