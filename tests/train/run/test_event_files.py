import struct
from pathlib import Path

from eyas.train.run.event_files import EventFile


def crc32c(data: bytes) -> int:
    """Bit by bit, from the polynomial; `crc32c(b"123456789")` is 0xE3069283 in RFC 3720."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def messages_of(folder: Path) -> list[bytes]:
    (file,) = folder.iterdir()
    data, messages = file.read_bytes(), []
    while data:
        length = struct.unpack("<Q", data[:8])[0]
        message = data[12 : 12 + length]
        assert struct.unpack("<I", data[8:12])[0] == masked(data[:8])
        assert struct.unpack("<I", data[12 + length : 16 + length])[0] == masked(message)
        messages.append(message)
        data = data[16 + length :]
    return messages


def fields_of(message: bytes) -> list[tuple[int, object]]:
    """(field number, value) of a protobuf message, in order."""
    fields, at = [], 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            fields.append((key >> 3, varint()))
        else:
            size = {1: 8, 5: 4}.get(key & 7) or varint()
            raw = message[at : at + size]
            at += size
            fields.append((key >> 3, struct.unpack({1: "<d", 5: "<f"}[key & 7], raw)[0] if key & 7 != 2 else raw))
    return fields


def test_the_checksum_is_the_published_one():
    assert crc32c(b"123456789") == 0xE3069283


def test_scalars_come_back_out_of_the_frames(tmp_path: Path):
    file = EventFile(tmp_path)
    file.add(300, {"loss": 0.5, "accuracy/step_0": 0.25}, wall_time=1000.0)
    file.close()

    version, event = (fields_of(message) for message in messages_of(tmp_path))
    assert (3, b"brain.Event:2") in version
    assert event[:2] == [(1, 1000.0), (2, 300)]
    values = [fields_of(raw) for _, raw in fields_of(dict(event)[5])]
    assert values == [[(1, b"loss"), (2, 0.5)], [(1, b"accuracy/step_0"), (2, 0.25)]]
