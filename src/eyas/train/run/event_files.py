"""TensorBoard's event files, written without TensorBoard: scalars in framed protobuf records.

Format: TensorFlow's `record_writer` (length, masked CRC-32C of it, bytes, masked CRC-32C of them) around `Event`
messages (event.proto: wall_time 1, step 2, file_version 3, summary 5; Summary.Value: tag 1, simple_value 2).
"""

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

_POLYNOMIAL = 0x82F63B78


def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


class EventFile:
    """One event file in `folder`, which is made. Each call of `add` is on disk when it returns."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._table = _crc_table()
        self._file = (folder / name).open("ab", buffering=0)
        self._write(_double(1, time.time()) + _bytes(3, b"brain.Event:2"))

    def add(self, step: int, scalars: Mapping[str, float], wall_time: float) -> None:
        """Scalars by tag at `step`; `wall_time` in seconds since 1970."""
        values = b"".join(_bytes(1, _bytes(1, tag.encode()) + _float(2, value)) for tag, value in scalars.items())
        self._write(_double(1, wall_time) + _varint(2 << 3) + _varint(step) + _bytes(5, values))

    def close(self) -> None:
        """Nothing can be added after it."""
        self._file.close()

    def _write(self, message: bytes) -> None:
        length = struct.pack("<Q", len(message))
        self._file.write(length + self._masked_crc(length) + message + self._masked_crc(message))

    def _masked_crc(self, data: bytes) -> bytes:
        crc = 0xFFFFFFFF
        for byte in data:
            crc = self._table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
        crc ^= 0xFFFFFFFF
        return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)
