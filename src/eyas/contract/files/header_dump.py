"""A header dump: a checkpoint's names, shapes, dtypes, config and map summaries as one JSON document.

Made to be attached to a bug report: no weights, no map values, no absolute paths; read back it means the same.
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from math import prod
from pathlib import PurePath
from typing import Any

from eyas.contract.files.checkpoint import DTYPE_BITS, Checkpoint, IntMap, TensorInfo
from eyas.contract.files.tokenizer_print import tokenizer_print
from eyas.errors import EyasError

SCHEMA = "eyas.header/1"
_SUMMARY = tuple(field.name for field in fields(IntMap) if field.name != "values")
_ABSOLUTE = re.compile(r"^(?:/|~|[A-Za-z]:[\\/])")


class DumpInvalid(EyasError):
    """A header dump that lacks something or was edited into nonsense."""

    code = "dump-invalid"


def dump_document(checkpoint: Checkpoint) -> dict[str, Any]:
    """The dump of `checkpoint` as a JSON-able object; `checkpoint_of_dump` gives it back."""
    return {
        "schema": SCHEMA,
        "name": PurePath(checkpoint.where).name,
        "config": without_paths(checkpoint.config),
        "files": list(checkpoint.files),
        "tensors": {
            name: {"dtype": info.dtype, "shape": list(info.shape), "file": info.file}
            for name, info in checkpoint.tensors.items()
        },
        "int_maps": {
            name: {key: getattr(int_map, key) for key in _SUMMARY} for name, int_map in checkpoint.int_maps.items()
        },
        "metadata": without_paths(checkpoint.metadata),
        "extra": without_paths(checkpoint.extra),
        "hashes": {**checkpoint.hashes, **_tokenizer(checkpoint)},
        "notes": list(checkpoint.notes),
    }


def _tokenizer(checkpoint: Checkpoint) -> dict[str, str]:
    """What the ids mean, stored in the dump, since a reader of it has no tokenizer file."""
    found = tokenizer_print(checkpoint)
    return {} if found is None else {"tokenizer": found.hash}


def checkpoint_of_dump(document: Mapping[str, Any], where: str) -> Checkpoint:
    """The checkpoint that `document` describes.

    Raises:
        DumpInvalid: another schema, or a part of the wrong form.
    """
    if document.get("schema") != SCHEMA:
        raise _invalid(where, f"its schema is {document.get('schema')!r}, expected {SCHEMA!r}")
    parts = {key: document.get(key, {}) for key in ("config", "tensors", "int_maps", "metadata", "extra", "hashes")}
    for key, value in parts.items():
        if not isinstance(value, Mapping):
            raise _invalid(where, f"{key!r} is not an object")
    for key in ("metadata", "hashes"):
        if not all(isinstance(value, str) for value in parts[key].values()):
            raise _invalid(where, f"{key!r} is not a map of strings")
    if strays := sorted(parts["int_maps"].keys() - parts["tensors"].keys()):
        raise _invalid(where, f"int map {strays[0][:80]!r} belongs to no tensor that it lists")
    return Checkpoint(
        where=where,
        kind="dump",
        config=parts["config"],
        tensors={name: _tensor(name, value, where) for name, value in parts["tensors"].items()},
        int_maps={name: _int_map(name, value, where) for name, value in parts["int_maps"].items()},
        files=tuple(_strings(document.get("files", []), "files", where)),
        metadata=parts["metadata"],
        extra=parts["extra"],
        hashes=parts["hashes"],
        notes=tuple(_strings(document.get("notes", []), "notes", where)),
    )


def without_paths(value: Any) -> Any:
    """`value` with every absolute path cut to `/.../NAME`, so that it does not show the user's folders."""
    if isinstance(value, str):
        return f"/.../{PurePath(value.rstrip('/')).name}" if _ABSOLUTE.match(value) else value
    if isinstance(value, Mapping):
        return {str(key): without_paths(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(item) for item in value]
    return value


def _invalid(where: str, why: str) -> DumpInvalid:
    return DumpInvalid("the header dump cannot be read", where, why, "make it again with `eyas header DIR > x.json`")


def _strings(value: Any, key: str, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _invalid(where, f"{key!r} is not a list of strings")
    return value


def _tensor(name: str, value: Any, where: str) -> TensorInfo:
    shape = value.get("shape") if isinstance(value, Mapping) else None
    if (
        not isinstance(shape, list)
        or len(shape) > 64
        or not all(type(size) is int and 0 <= size < 1 << 63 for size in shape)
        or prod(shape) >= 1 << 56
        or not isinstance(value.get("dtype"), str)
        or value["dtype"] not in DTYPE_BITS
        or not isinstance(value.get("file"), str | None)
        or not name.isprintable()
    ):
        raise _invalid(where, f"tensor {name[:80]!r} needs dtype, shape and file, and is {str(value)[:80]}")
    return TensorInfo(dtype=value["dtype"], shape=tuple(shape), file=None)


def _int_map(name: str, value: Any, where: str) -> IntMap:
    if not isinstance(value, Mapping) or set(_SUMMARY) - set(value):
        raise _invalid(where, f"int map {name[:80]!r} lacks its summary")
    kinds = {"digest": str, "digest_absolute": str, "is_strictly_increasing": bool, "ids_strictly_increasing": bool}
    for key in _SUMMARY:
        if type(value[key]) is not kinds.get(key, int):
            raise _invalid(where, f"int map {name[:80]!r}: {key} is {str(value[key])[:40]!r}")
        if kinds.get(key, int) is int and abs(value[key]) >= 1 << 62:
            raise _invalid(where, f"int map {name[:80]!r}: {key} is beyond 64 bits")
    return IntMap(values=None, **{key: value[key] for key in _SUMMARY})
