"""Where the records of a `.bin` (a PyTorch zip) lie in the file: a small strict reader of zip directories.

Python's `zipfile` reads what a directory claims without limits and cannot say where a record's bytes are; this one
bounds its memory and gives byte ranges. Only stored (uncompressed) records exist in PyTorch's files.
Source: PKWARE APPNOTE 6.3.10 §4.3; `torch/csrc/...caffe2/serialize/inline_container.cc`.
"""

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from eyas.contract.files.git_lfs import refuse_pointer
from eyas.contract.files.json_file import unreadable
from eyas.errors import EyasError

MAX_DIRECTORY_BYTES = 32 << 20
MAX_RECORDS = 200_000
_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s4B4H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_UNSET32 = 0xFFFFFFFF


class BinNotZip(EyasError):
    """A `.bin` that is not a PyTorch zip: truncated, or of the format before PyTorch 1.6."""

    code = "bin-not-zip"


class BinDirectoryInvalid(EyasError):
    """The zip directory of a `.bin` contradicts itself or the file."""

    code = "bin-directory-invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZipRecord:
    """Byte range of one stored record."""

    begin: int
    end: int


def read_zip_records(path: Path) -> Mapping[str, ZipRecord]:
    """Name -> byte range of every record of the zip file `path`.

    Raises:
        FileUnreadable: missing, no regular file, or not readable.
        GitLfsPointer: a pointer to the file.
        BinNotZip: no zip directory at the end of the file.
        BinDirectoryInvalid: compressed, encrypted, duplicate, overlapping or outside records, or too many of them.
    """
    try:
        if not path.is_file():
            raise unreadable(path, "it is missing, or not a regular file")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            refuse_pointer(file.read(64), path)
            count, directory_bytes, directory_begin = _find_directory(file, size, path)
            file.seek(directory_begin)
            entries = _parse_directory(file.read(directory_bytes), count, path)
            records = {name: _locate(file, name, at, length, directory_begin, path) for name, at, length in entries}
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise unreadable(path, str(error)) from None
    _check_disjoint(records, path)
    return records


def _invalid(path: Path, why: str) -> BinDirectoryInvalid:
    return BinDirectoryInvalid(
        f"the zip directory of {path.name} is invalid", str(path), why, "download the file again, or save it again"
    )


def _find_directory(file: BinaryIO, size: int, path: Path) -> tuple[int, int, int]:
    tail_bytes = min(size, _END.size + 0xFFFF + _END64_LOCATOR.size)
    file.seek(size - tail_bytes)
    tail = file.read(tail_bytes)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < _END.size:
        file.seek(0)
        head = file.read(8)
        why = f"no zip directory in the last {tail_bytes} of its {size} bytes"
        if head[:2] == b"PK":
            why += "; it begins as a zip, so it is truncated"
        elif head[:1] == b"\x80":
            why += "; it begins as a bare pickle, the format before PyTorch 1.6"
        raise BinNotZip(
            f"{path.name} is not a PyTorch zip file",
            str(path),
            why,
            "download the file again; an old file: load it with the PyTorch that wrote it and save as safetensors",
        )
    _, disk, _, _, count, directory_bytes, directory_begin, _ = _END.unpack_from(tail, at)
    if disk:
        raise _invalid(path, "it is split over several disks")
    if count == 0xFFFF or _UNSET32 in (directory_bytes, directory_begin):
        count, directory_bytes, directory_begin = _find_directory64(file, size, tail, at, path)
    if directory_begin + directory_bytes > size:
        raise _invalid(path, f"it ends at byte {directory_begin + directory_bytes}, the file at {size}")
    if directory_bytes > MAX_DIRECTORY_BYTES or count > MAX_RECORDS:
        raise _invalid(path, f"it claims {count} records in {directory_bytes} bytes, more than any draft needs")
    return count, directory_bytes, directory_begin


def _find_directory64(file: BinaryIO, size: int, tail: bytes, at: int, path: Path) -> tuple[int, int, int]:
    if at < _END64_LOCATOR.size:
        raise _invalid(path, "the zip64 locator is missing")
    signature, _, begin, _ = _END64_LOCATOR.unpack_from(tail, at - _END64_LOCATOR.size)
    if signature != b"PK\x06\x07" or begin + _END64.size > size:
        raise _invalid(path, "the zip64 locator is missing or points outside the file")
    file.seek(begin)
    fields = _END64.unpack(file.read(_END64.size))
    if fields[0] != b"PK\x06\x06":
        raise _invalid(path, "the zip64 end record is missing")
    return fields[7], fields[8], fields[9]


def _parse_directory(data: bytes, count: int, path: Path) -> list[tuple[str, int, int]]:
    entries: list[tuple[str, int, int]] = []
    names: set[str] = set()
    at = 0
    for _ in range(count):
        if len(data) - at < _ENTRY.size:
            raise _invalid(path, f"it claims {count} records and holds {len(entries)}")
        fields = _ENTRY.unpack_from(data, at)
        flags, method = fields[5], fields[6]
        packed, length, name_bytes, extra_bytes, comment_bytes = (
            fields[10],
            fields[11],
            fields[12],
            fields[13],
            fields[14],
        )
        begin = fields[18]
        at += _ENTRY.size
        raw = data[at : at + name_bytes]
        extra = data[at + name_bytes : at + name_bytes + extra_bytes]
        at += name_bytes + extra_bytes + comment_bytes
        if fields[0] != b"PK\x01\x02" or at > len(data):
            raise _invalid(path, f"record {len(entries)} is malformed")
        name = raw.decode("utf-8", errors="replace")
        length, packed, begin = _zip64_values(extra, length, packed, begin, path)
        if method or flags & 1 or packed != length:
            raise _invalid(path, f"record {name[:80]!r} is compressed or encrypted; PyTorch stores plain bytes")
        if name in names:
            raise _invalid(path, f"record {name[:80]!r} occurs twice")
        names.add(name)
        entries.append((name, begin, length))
    return entries


def _zip64_values(extra: bytes, length: int, packed: int, begin: int, path: Path) -> tuple[int, int, int]:
    values = [length, packed, begin]
    wanted = [index for index, value in enumerate(values) if value == _UNSET32]
    at = 0
    while wanted and at + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            if size < 8 * len(wanted) or at + 4 + size > len(extra):
                raise _invalid(path, "a zip64 field is too short")
            for place, index in enumerate(wanted):
                values[index] = struct.unpack_from("<Q", extra, at + 4 + 8 * place)[0]
            wanted = []
        at += 4 + size
    if wanted:
        raise _invalid(path, "a zip64 field is missing")
    return values[0], values[1], values[2]


def _locate(file: BinaryIO, name: str, at: int, length: int, limit: int, path: Path) -> ZipRecord:
    if at + _LOCAL.size > limit:
        raise _invalid(path, f"record {name[:80]!r} begins at byte {at}, after the records end at {limit}")
    file.seek(at)
    fields = _LOCAL.unpack(file.read(_LOCAL.size))
    begin = at + _LOCAL.size + fields[9] + fields[10]
    if fields[0] != b"PK\x03\x04" or begin + length > limit:
        raise _invalid(path, f"record {name[:80]!r} has no header at byte {at}, or ends after the records do")
    return ZipRecord(begin=begin, end=begin + length)


def _check_disjoint(records: Mapping[str, ZipRecord], path: Path) -> None:
    at, previous = 0, ""
    for name, record in sorted(records.items(), key=lambda item: item[1].begin):
        if record.begin < at:
            raise _invalid(path, f"records {previous[:80]!r} and {name[:80]!r} overlap")
        at, previous = record.end, name
