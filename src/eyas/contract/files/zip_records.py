"""Where the records of a `.bin` (a PyTorch zip) lie in the file: Python's zip directory reader, with limits and ranges.

Only stored (uncompressed) records exist in PyTorch's files.
Source: PKWARE APPNOTE 6.3.10 §4.3; `torch/csrc/...caffe2/serialize/inline_container.cc`.
"""

import errno
import io
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eyas.contract.files.git_lfs import refuse_pointer
from eyas.contract.files.json_file import unreadable
from eyas.errors import EyasError

MAX_DIRECTORY_BYTES = 16 << 20  # 200 000 records of a target
_LOCAL = struct.Struct("<4s5H3L2H")


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


class _Bounded(io.FileIO):
    """A file whose claims about itself cannot fill the memory."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"it claims a directory of {size} bytes, more than any draft needs")
        return super().read(MAX_DIRECTORY_BYTES if size is None or size < 0 else size) or b""


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
        with _Bounded(str(path)) as file:
            head = file.read(64)
            refuse_pointer(head, path)
            if not zipfile.is_zipfile(file):
                raise _not_zip(path, head)
            with zipfile.ZipFile(file) as archive:
                return _records(file, archive)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a place before the file's beginning
            raise unreadable(path, str(error)) from None
        why = "it points before the beginning of the file"
    except (zipfile.BadZipFile, NotImplementedError, struct.error, OverflowError, ValueError) as error:
        why = str(error)[:200]
    do = "download the file again, or save it again"
    raise BinDirectoryInvalid(f"the zip directory of {path.name} is invalid", str(path), why, do)


def _not_zip(path: Path, head: bytes) -> BinNotZip:
    why = f"no zip directory at the end of its {path.stat().st_size} bytes"
    if head[:2] == b"PK":
        why += "; it begins as a zip, so it is truncated"
    elif head[:1] == b"\x80":
        why += "; it begins as a bare pickle, the format before PyTorch 1.6"
    do = "download the file again; an old file: load it with the PyTorch that wrote it and save as safetensors"
    return BinNotZip(f"{path.name} is not a PyTorch zip file", str(path), why, do)


def _records(file: _Bounded, archive: zipfile.ZipFile) -> Mapping[str, ZipRecord]:
    found: dict[str, ZipRecord] = {}
    at, previous = 0, ""
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        name, shown = info.filename, repr(info.filename[:80])
        if info.compress_type or info.flag_bits & 1 or info.compress_size != info.file_size:
            raise zipfile.BadZipFile(f"record {shown} is compressed or encrypted; PyTorch stores plain bytes")
        if name in found:
            raise zipfile.BadZipFile(f"record {shown} occurs twice")
        file.seek(info.header_offset)
        fields = _LOCAL.unpack(file.read(_LOCAL.size))
        begin = info.header_offset + _LOCAL.size + fields[9] + fields[10]
        end = begin + info.file_size
        if fields[0] != b"PK\x03\x04" or end > archive.start_dir:
            where = f"at byte {info.header_offset}, or ends after the records do"
            raise zipfile.BadZipFile(f"record {shown} has no header {where}")
        if begin < at:
            raise zipfile.BadZipFile(f"records {previous!r} and {shown} overlap")
        found[name] = ZipRecord(begin=begin, end=end)
        at, previous = end, name[:80]
    return found
