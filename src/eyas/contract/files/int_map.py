"""The vocabulary maps `d2t` (offsets) and `t2d` (mask), read from raw bytes and summarised without numpy, fast."""

import hashlib
import sys
from array import array
from collections.abc import Iterable
from itertools import compress, islice
from operator import add, lt, sub

from eyas.contract.files.checkpoint import IntMap

MAX_ENTRIES = 1 << 22  # 20 times the largest vocabulary known
_ARRAY_CODES = {
    "I64": "q",
    "I32": "i",
    "I16": "h",
    "I8": "b",
    "U8": "B",
    "BOOL": "B",
    "U16": "H",
    "U32": "I",
    "U64": "Q",
}


def map_kind(name: str) -> str | None:
    """ "d2t" or "t2d" when the tensor `name` (as stored) is a vocabulary map, else None."""
    last = name.rsplit(".", 1)[-1]
    return last if last in ("d2t", "t2d") else None


def map_problem(dtype: str, shape: tuple[int, ...]) -> str | None:
    """Why a tensor cannot be a vocabulary map: not integers or booleans, not one-dimensional, or absurdly long."""
    if dtype not in _ARRAY_CODES:
        return f"its dtype is {dtype}; engines want I64, and add it to token ids"
    if len(shape) != 1:
        return f"its shape is {list(shape)}; a vocabulary map has one dimension"
    return f"it has {shape[0]} entries; the limit is {MAX_ENTRIES}" if shape[0] > MAX_ENTRIES else None


def int_map_of_bytes(data: bytes, dtype: str, *, is_mask: bool) -> IntMap:
    """The map stored in `data`.

    Args:
        data: little-endian values, one after another.
        dtype: safetensors name, one that `map_problem` accepts.
        is_mask: t2d (True: non-zero at the ids of the draft vocabulary) or d2t (False: offsets).
    """
    values = array(_ARRAY_CODES[dtype])
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return int_map_of_values(values, is_mask=is_mask)


def int_map_of_values(values: "array[int]", *, is_mask: bool) -> IntMap:
    """The map with these values and its summary."""
    length = len(values)
    ids = list(compress(range(length), values)) if is_mask else list(map(add, range(length), values))
    digest = _digest(ids)
    return IntMap(
        values=values,
        length=length,
        minimum=min(values, default=0),
        maximum=max(values, default=0),
        num_true=length - values.count(0),
        is_strictly_increasing=_is_increasing(values),
        ids_strictly_increasing=is_mask or _is_increasing(ids),
        ids_minimum=min(ids, default=0),
        ids_maximum=max(ids, default=0),
        digest=digest,
        digest_absolute=digest if is_mask else _digest(values),
    )


def target_ids(int_map: IntMap, *, is_mask: bool) -> list[int] | None:
    """Target id of each draft id, or None when only a summary is known."""
    if int_map.values is None:
        return None
    if is_mask:
        return list(compress(range(int_map.length), int_map.values))
    return list(map(add, range(int_map.length), int_map.values))


def is_absolute(d2t: IntMap, t2d: IntMap | None) -> bool:
    """Proven by `t2d`: the values of `d2t` are target ids themselves, not offsets."""
    return t2d is not None and t2d.digest == d2t.digest_absolute and t2d.digest != d2t.digest


def absolute_evidence(d2t: IntMap, t2d: IntMap | None, vocab_size: int) -> str | None:
    """What shows that `d2t` holds sorted target ids, so that they can be rewritten as offsets; None if nothing does.

    Without a t2d it is enough that the values cannot be offsets: read so they leave the vocabulary, while as ids they
    are sorted, distinct and fit.
    """
    if not d2t.is_strictly_increasing or d2t.length < 2 or d2t.minimum < 0:
        return None
    if is_absolute(d2t, t2d):
        return "read as absolute ids it agrees with t2d"
    if t2d is None and d2t.maximum < vocab_size <= d2t.ids_maximum:
        return f"as offsets its values leave the vocabulary of {vocab_size}; as ids they are sorted and fit"
    return None


def offsets_of_absolute(d2t: IntMap) -> IntMap | None:
    """`d2t`, which holds target ids, as offsets; None where they are not sorted and distinct, or not known."""
    if d2t.values is None or not d2t.is_strictly_increasing or d2t.minimum < 0:
        return None
    offsets = array("q", map(sub, d2t.values, range(d2t.length)))
    return int_map_of_values(offsets, is_mask=False)


def map_bytes(int_map: IntMap, dtype: str) -> bytes:
    """The values as a file holds them."""
    assert int_map.values is not None, "only maps that were read are written"
    values = array(_ARRAY_CODES[dtype], int_map.values)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def mask_bytes(ids: Iterable[int], vocab_size: int) -> bytes:
    """A BOOL `t2d` of `vocab_size` entries, true at `ids`; ids outside are an error of the caller."""
    mask = bytearray(vocab_size)
    for index in ids:
        assert 0 <= index < vocab_size, "ids are checked before a mask is derived"
        mask[index] = 1
    return bytes(mask)


def _is_increasing(values: "array[int] | list[int]") -> bool:
    return all(map(lt, values, islice(values, 1, None)))


def _digest(ids: "array[int] | list[int]") -> str:
    # a set: a permuted map and its mask agree
    text = ",".join(map(str, sorted(set(ids))))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
