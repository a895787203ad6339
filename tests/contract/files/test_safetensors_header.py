"""Each way a safetensors header can be wrong has its own error, and a wrong length costs no memory."""

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from drafts import safetensors_bytes
from eyas.contract.files.json_file import FileUnreadable, JsonDuplicateKey, JsonInvalid
from eyas.contract.files.safetensors_header import (
    FileTrailingData,
    FileTruncated,
    HeaderBeyondFile,
    HeaderInvalid,
    HeaderTooLarge,
    TensorDtypeUnknown,
    TensorEntryInvalid,
    TensorOffsets,
    TensorSizeMismatch,
    read_safetensors_header,
)

GOOD = {"a": ("BF16", (2, 3), b"x" * 12), "b": ("F32", (2,), b"y" * 8)}


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: str = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_names_shapes_and_absolute_byte_ranges_are_read(tmp_path: Path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_bytes(GOOD))

    header = read_safetensors_header(path)

    assert [(n, i.dtype, i.shape) for n, i in header.tensors.items()] == [("a", "BF16", (2, 3)), ("b", "F32", (2,))]
    info = header.tensors["b"]
    assert path.read_bytes()[info.begin : info.end] == b"y" * 8
    assert info.num_bytes == 8


def test_what_the_reference_library_writes_is_read(tmp_path: Path):
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    state = {"w": torch.randn(3, 4).to(torch.bfloat16), "t2d": torch.ones(5, dtype=torch.bool), "e": torch.empty(0, 2)}
    save_file(state, tmp_path / "m.safetensors", metadata={"format": "pt"})

    header = read_safetensors_header(tmp_path / "m.safetensors")

    assert header.metadata == {"format": "pt"}
    assert {n: (i.dtype, i.shape) for n, i in header.tensors.items()} == {
        "w": ("BF16", (3, 4)),
        "t2d": ("BOOL", (5,)),
        "e": ("F32", (0, 2)),
    }


def test_a_truncated_file_is_named_with_both_sizes(tmp_path: Path):
    data = safetensors_bytes(GOOD)
    (tmp_path / "m.safetensors").write_bytes(data[:-5])

    with pytest.raises(FileTruncated) as caught:
        read_safetensors_header(tmp_path / "m.safetensors")

    assert str(len(data)) in caught.value.why
    assert str(len(data) - 5) in caught.value.why
    assert "'b'" in caught.value.what


def test_a_header_longer_than_the_file_is_refused(tmp_path: Path):
    (tmp_path / "m.safetensors").write_bytes((1000).to_bytes(8, "little") + b"{}")

    with pytest.raises(HeaderBeyondFile) as caught:
        read_safetensors_header(tmp_path / "m.safetensors")

    assert "1000" in caught.value.why
    assert "10" in caught.value.why


def test_a_header_claiming_two_to_the_sixty_bytes_costs_no_memory(tmp_path: Path):
    (tmp_path / "m.safetensors").write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with pytest.raises(HeaderTooLarge):
        read_safetensors_header(tmp_path / "m.safetensors")

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096


@pytest.mark.parametrize(
    ("header", "data", "error"),
    [
        (b"[]", b"", HeaderInvalid),
        (b" {}", b"", HeaderInvalid),
        (b"{", b"", JsonInvalid),
        (b"\xff\xfe", b"", JsonInvalid),
        (b"[" * 100_000, b"", JsonInvalid),
        (b'{"a": 1' + b"0" * 5000 + b"}", b"", JsonInvalid),
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":1}', b"1234", JsonDuplicateKey),
        ({"__metadata__": {"a": 1}}, b"", HeaderInvalid),
        ({"__metadata__": []}, b"", HeaderInvalid),
        ({"a": 1}, b"", TensorEntryInvalid),
        ({"a": {**entry(), "more": 1}}, b"1234", TensorEntryInvalid),
        ({"": entry()}, b"1234", TensorEntryInvalid),
        ({"a\x1b[2J": entry()}, b"1234", TensorEntryInvalid),
        ({"n" * 2000: entry()}, b"1234", TensorEntryInvalid),
        ({"a": entry(shape=[-1])}, b"1234", TensorEntryInvalid),
        ({"a": entry(shape=[True])}, b"1234", TensorEntryInvalid),
        ({"a": entry(shape=[1.0])}, b"1234", TensorEntryInvalid),
        ({"a": entry(shape=[1] * 65)}, b"1234", TensorEntryInvalid),
        ({"a": entry(offsets=[4, 0])}, b"1234", TensorEntryInvalid),
        ({"a": entry(offsets=[0])}, b"1234", TensorEntryInvalid),
        ({"a": entry(dtype="F33")}, b"1234", TensorDtypeUnknown),
        ({"a": entry(shape=[2])}, b"1234", TensorSizeMismatch),
        ({"a": entry(dtype="F4", shape=[3], offsets=[0, 2])}, b"12", TensorSizeMismatch),
        ({"a": entry(shape=[1 << 62, 1 << 62])}, b"1234", TensorSizeMismatch),
        ({"a": entry(), "b": entry(offsets=[2, 6])}, b"123456", TensorOffsets),
        ({"a": entry(), "b": entry(offsets=[5, 9])}, b"123456789", TensorOffsets),
        ({"a": entry(offsets=[4, 8])}, b"12345678", TensorOffsets),
        ({"a": entry()}, b"12345", FileTrailingData),
        ({"a": entry()}, b"123", FileTruncated),
    ],
)
def test_each_way_to_be_wrong_has_its_error(tmp_path: Path, header: Any, data: bytes, error: type[Exception]):
    with pytest.raises(error):
        read_safetensors_header(write(tmp_path / "m.safetensors", header, data))


def test_a_file_too_short_for_its_length_field_is_refused(tmp_path: Path):
    (tmp_path / "m.safetensors").write_bytes(b"1234")
    with pytest.raises(HeaderBeyondFile):
        read_safetensors_header(tmp_path / "m.safetensors")


def test_a_missing_file_and_a_folder_are_unreadable(tmp_path: Path):
    for path in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(FileUnreadable):
            read_safetensors_header(path)
