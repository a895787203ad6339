"""Strict reading of a safetensors header: every offset is proven before any data is read. Reads no weights.

Source: https://github.com/huggingface/safetensors (README "Format", `tensor.rs` for the checks).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from eyas.contract.files.checkpoint import DTYPE_BITS, TensorInfo
from eyas.contract.files.git_lfs import refuse_pointer
from eyas.contract.files.json_file import parse_json, unreadable
from eyas.errors import EyasError

HEADER_LIMIT_BYTES = 100_000_000  # the reference implementation's limit
_LENGTH_BYTES = 8
_MAX_NAME = 1024
_MAX_DIMENSIONS = 64


class HeaderTooLarge(EyasError):
    """The header's length field claims more than the format allows."""

    code = "header-too-large"


class HeaderBeyondFile(EyasError):
    """The header is longer than the file: truncated, or not safetensors."""

    code = "header-beyond-file"


class HeaderInvalid(EyasError):
    """The header is not a JSON object of tensor entries."""

    code = "header-invalid"


class TensorEntryInvalid(EyasError):
    """One tensor's header entry is malformed."""

    code = "tensor-entry-invalid"


class TensorDtypeUnknown(EyasError):
    """safetensors does not know a tensor's dtype."""

    code = "tensor-dtype-unknown"


class TensorSizeMismatch(EyasError):
    """A tensor's byte range is not as long as its shape and dtype need."""

    code = "tensor-size-mismatch"


class TensorOffsets(EyasError):
    """Byte ranges overlap or leave a hole."""

    code = "tensor-offsets"


class FileTruncated(EyasError):
    """The file ends before the last tensor does."""

    code = "file-truncated"


class FileTrailingData(EyasError):
    """The file continues after the last tensor."""

    code = "file-trailing-data"


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsHeader:
    """What a safetensors file says of itself.

    Attributes:
        tensors: name -> entry, `begin` and `end` absolute in the file, in the order of the data.
        metadata: `__metadata__`.
        data_begin: bytes before the first tensor.
    """

    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    data_begin: int


def read_safetensors_header(path: Path) -> SafetensorsHeader:
    """The header of the safetensors file `path`, all of it checked. Memory is bounded by the file's own header.

    Raises:
        FileUnreadable: missing, no regular file, or not readable.
        GitLfsPointer: a pointer to the file.
        HeaderTooLarge, HeaderBeyondFile, HeaderInvalid, JsonInvalid, JsonDuplicateKey: see those.
        TensorEntryInvalid, TensorDtypeUnknown, TensorSizeMismatch, TensorOffsets, FileTruncated, FileTrailingData.
    """
    try:
        if not path.is_file():
            raise unreadable(path, "it is missing, or not a regular file")
        with open(path, "rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            prefix = file.read(_LENGTH_BYTES)
            if prefix == b"version ":  # as a length it would be absurd
                refuse_pointer(prefix + file.read(64), path)
            length = _header_length(path, prefix, file_bytes)
            data = file.read(length)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise unreadable(path, str(error)) from None
    return parse_safetensors_header(data, path, file_bytes)


def parse_safetensors_header(data: bytes, path: Path, file_bytes: int) -> SafetensorsHeader:
    """The header whose JSON text is `data`, of the file `path` of `file_bytes` bytes. Raises as above."""
    document = parse_json(data, f"{path}: header")
    if not isinstance(document, dict) or not data.startswith(b"{"):
        raise HeaderInvalid(
            "the header is not a JSON object",
            str(path),
            f"it starts with {data[:8]!r}",
            "this is not a safetensors file; download or export it again",
        )
    metadata = _metadata(document.pop("__metadata__", {}), path)
    data_begin = _LENGTH_BYTES + len(data)
    entries = {name: _entry(name, value, path, data_begin) for name, value in document.items()}
    ordered = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
    _check_offsets(ordered, path, data_begin, file_bytes)
    return SafetensorsHeader(tensors=ordered, metadata=metadata, data_begin=data_begin)


def _header_length(path: Path, prefix: bytes, file_bytes: int) -> int:
    if len(prefix) < _LENGTH_BYTES:
        raise HeaderBeyondFile(
            f"{path.name} is too short for a safetensors file",
            str(path),
            f"it has {file_bytes} bytes; the length field alone has {_LENGTH_BYTES}",
            "download or export the file again",
        )
    length = int.from_bytes(prefix, "little")
    if length > HEADER_LIMIT_BYTES:
        raise HeaderTooLarge(
            f"the header claims {length} bytes",
            str(path),
            f"the format allows {HEADER_LIMIT_BYTES}; the file has {file_bytes} and is probably not safetensors",
            "download or export the file again",
        )
    if _LENGTH_BYTES + length > file_bytes:
        raise HeaderBeyondFile(
            "the header is longer than the file",
            str(path),
            f"it claims {length} bytes after the first {_LENGTH_BYTES}; the file has {file_bytes}",
            "the file is truncated: download or copy it again",
        )
    return length


def _metadata(value: Any, path: Path) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise HeaderInvalid(
            "__metadata__ is not a map of strings",
            str(path),
            f"it is {str(value)[:80]!r}",
            "export the file again",
        )
    return value


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _entry(name: str, value: Any, path: Path, data_begin: int) -> TensorInfo:
    problem = _entry_problem(name, value)
    if problem:
        raise TensorEntryInvalid(
            f"tensor {name[:80]!r} has a malformed header entry", str(path), problem, "export the file again"
        )
    dtype, shape, (begin, end) = value["dtype"], tuple(value["shape"]), value["data_offsets"]
    if dtype not in DTYPE_BITS:
        raise TensorDtypeUnknown(
            f"tensor {name!r} has the unknown dtype {dtype[:40]!r}",
            str(path),
            f"safetensors knows {', '.join(DTYPE_BITS)}",
            "export the file again, or report the dtype if your safetensors writes it",
        )
    bits = prod(shape) * DTYPE_BITS[dtype]
    if bits % 8 or bits // 8 != end - begin:
        raise TensorSizeMismatch(
            f"tensor {name!r} does not fill its byte range",
            str(path),
            f"{dtype} {list(shape)} needs {bits / 8:g} bytes, data_offsets {[begin, end]} give {end - begin}",
            "export the file again",
        )
    return TensorInfo(dtype=dtype, shape=shape, file=path.name, begin=data_begin + begin, end=data_begin + end)


def _entry_problem(name: str, value: Any) -> str | None:
    if not name or len(name) > _MAX_NAME or not name.isprintable():
        return f"names are 1 to {_MAX_NAME} printable characters"
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        return f"it must have exactly dtype, shape and data_offsets, and is {str(value)[:80]}"
    if not isinstance(value["dtype"], str):
        return f"dtype is {str(value['dtype'])[:40]}, not a string"
    shape, offsets = value["shape"], value["data_offsets"]
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS or not all(map(_is_size, shape)):
        return f"shape {str(shape)[:80]} is not a list of sizes"
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        return f"data_offsets {str(offsets)[:80]} is not a pair of sizes"
    if offsets[0] > offsets[1]:
        return f"data_offsets {offsets} end before they begin"
    return None


def _check_offsets(ordered: Mapping[str, TensorInfo], path: Path, data_begin: int, file_bytes: int) -> None:
    at, previous = data_begin, "the header"
    for name, info in ordered.items():
        assert info.begin is not None, "safetensors entries have offsets"
        assert info.end is not None, "safetensors entries have offsets"
        if info.begin != at:
            kind = "overlaps" if info.begin < at else "leaves a hole after"
            raise TensorOffsets(
                f"tensor {name!r} {kind} {previous!r}",
                str(path),
                f"it begins at byte {info.begin}, the one before ends at {at}",
                "export the file again",
            )
        at, previous = info.end, name
    if at > file_bytes:
        last = next(name for name, info in ordered.items() if info.end is not None and info.end > file_bytes)
        raise FileTruncated(
            f"{path.name} is truncated: tensor {last!r} lies beyond its end",
            str(path),
            f"the header describes {at} bytes, the file has {file_bytes}",
            "download or copy the file again",
        )
    if at < file_bytes:
        raise FileTrailingData(
            f"{path.name} continues after its last tensor",
            str(path),
            f"the header describes {at} bytes, the file has {file_bytes}",
            "download or export the file again: the header and the data do not belong together",
        )
