"""A `pytorch_model.bin` that `torch.load(weights_only=True)` reads, written without torch.

The pickle is protocol 2 and describes an OrderedDict of `_rebuild_tensor_v2` calls, as torch.save writes it; each
tensor has its own storage record, stored and aligned to 64 bytes.
Source: `torch/serialization.py`, `torch/_utils.py`; PKWARE APPNOTE §4.3.
"""

import os
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from eyas.contract.convert.conversion import PlannedTensor
from eyas.contract.convert.tensor_bytes import write_tensor
from eyas.contract.files.restricted_pickle import STORAGE_DTYPES
from eyas.errors import EyasError

_ALIGN = 64
_LIMIT32 = 0xFFFFFFFF
_STORAGES = {dtype: name for name, dtype in STORAGE_DTYPES.items()}


class BinDtypeUnwritable(EyasError):
    """A dtype that a `.bin` written here has no storage class for."""

    code = "bin-dtype-unwritable"


def write_torch_bin(
    path: Path, tensors: Sequence[PlannedTensor], wrote: Callable[[PlannedTensor, int], Callable[[], int]]
) -> None:
    """Write `tensors` as the state dict of a `.bin`.

    Args:
        wrote: called after each tensor with the offset of its data in the file; gives a function that waits for the
            CRC-32 of those data, read back.

    Raises:
        BinDtypeUnwritable: a dtype without a torch storage class.
        SourceChanged, OSError: as in `write_safetensors`.
    """
    root = path.name.removesuffix(".bin")
    with open(path, "xb+", buffering=0) as file:
        zip_file = _Zip(file.fileno())
        zip_file.add(f"{root}/data.pkl", pickle_bytes(tensors))
        zip_file.add(f"{root}/byteorder", b"little")
        for key, tensor in enumerate(tensors):
            begin = zip_file.begin(f"{root}/data/{key}", tensor.num_bytes)
            write_tensor(tensor, file.fileno(), begin)
            zip_file.end(begin, tensor.num_bytes, wrote(tensor, begin))
        zip_file.add(f"{root}/version", b"3\n")
        zip_file.close()


def pickle_bytes(tensors: Sequence[PlannedTensor]) -> bytes:
    """The pickle of the state dict; storages are numbered in the given order."""
    parts = [b"\x80\x02ccollections\nOrderedDict\n)R("]
    for key, tensor in enumerate(tensors):
        storage = _STORAGES.get(tensor.dtype)
        if storage is None:
            raise BinDtypeUnwritable(
                f"{tensor.name} is {tensor.dtype}, which a .bin cannot hold",
                tensor.origin,
                f"torch has storages for {', '.join(_STORAGES)}",
                "choose a format in safetensors",
            )
        elements = 1
        stride: list[int] = []
        for size in reversed(tensor.shape):
            stride.insert(0, elements)
            elements *= size
        parts += [
            _text(tensor.name),
            b"ctorch._utils\n_rebuild_tensor_v2\n((",
            _text("storage"),
            f"ctorch\n{storage}\n".encode(),
            _text(str(key)),
            _text("cpu"),
            _integer(elements),
            b"tQ",  # the persistent id
            _integer(0),
            _integers(tensor.shape),
            _integers(stride),
            b"\x89ccollections\nOrderedDict\n)RtR",
        ]
    return b"".join([*parts, b"u."])


def _text(text: str) -> bytes:
    data = text.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def _integer(value: int) -> bytes:
    if value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def _integers(values: Sequence[int]) -> bytes:
    return b"(" + b"".join(map(_integer, values)) + b"t"


class _Zip:
    """A zip of stored records, written in one pass; zip64 fields only where they are needed."""

    def __init__(self, file: int) -> None:
        self._file, self._at = file, 0
        self._entries: list[tuple[bytes, int, Callable[[], int], int]] = []  # name, header offset, crc, size

    def add(self, name: str, data: bytes) -> None:
        begin = self.begin(name, len(data))
        os.pwrite(self._file, data, begin)
        self.end(begin, len(data), lambda: zlib.crc32(data))

    def begin(self, name: str, size: int) -> int:
        """Write a record's header for `size` bytes and give the offset of its data."""
        raw, start = name.encode(), self._at
        big = struct.pack("<HHQQ", 1, 16, size, size) if size >= _LIMIT32 else b""
        # torch pads with an extra field "FB" so that it can map the data
        used = start + 30 + len(raw) + len(big)
        padding = (-(used + 4)) % _ALIGN
        extra = big + struct.pack("<HH", 0x4246, padding) + b"Z" * padding
        shown = _LIMIT32 if big else size
        header = struct.pack("<4s5H3L2H", b"PK\x03\x04", 45, 0, 0, 0, 0x21, 0, shown, shown, len(raw), len(extra))
        os.pwrite(self._file, header + raw + extra, start)
        self._entries.append((raw, start, lambda: 0, size))
        return start + len(header) + len(raw) + len(extra)

    def end(self, begin: int, size: int, checksum: Callable[[], int]) -> None:
        """Close the record whose data begin at `begin`; its checksum is asked for at the end."""
        raw, start, _, _ = self._entries[-1]
        self._entries[-1] = (raw, start, checksum, size)
        self._at = begin + size

    def close(self) -> None:
        """Write the checksums and the directory."""
        done = [(raw, start, checksum(), size) for raw, start, checksum, size in self._entries]
        for _, start, checksum, _ in done:
            os.pwrite(self._file, struct.pack("<L", checksum), start + 14)
        directory = b"".join(self._directory_entry(*entry) for entry in done)
        count, begin = len(done), self._at
        tail = b""
        if begin >= _LIMIT32 or count >= 0xFFFF:
            tail += struct.pack(
                "<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(directory), begin
            ) + struct.pack("<4sLQL", b"PK\x06\x07", 0, begin + len(directory), 1)
        tail += struct.pack(
            "<4s4H2LH", b"PK\x05\x06", 0, 0, min(count, 0xFFFF), min(count, 0xFFFF), len(directory),
            min(begin, _LIMIT32), 0,
        )  # fmt: skip
        os.pwrite(self._file, directory + tail, begin)

    @staticmethod
    def _directory_entry(raw: bytes, start: int, checksum: int, size: int) -> bytes:
        values = [value for value in (size, size, start) if value >= _LIMIT32]
        extra = struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values) if values else b""
        shown = min(size, _LIMIT32)
        return (
            struct.pack(
                "<4s4B4H3L5H2L", b"PK\x01\x02", 45, 0, 45, 0, 0, 0, 0, 0x21, checksum, shown, shown, len(raw),
                len(extra), 0, 0, 0, 0, min(start, _LIMIT32),
            )
            + raw
            + extra
        )  # fmt: skip
