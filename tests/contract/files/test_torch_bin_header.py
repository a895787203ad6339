"""A `.bin` is understood without torch and without running its pickle; what is not a state dict is refused by name."""

import collections
import os
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest

from eyas.contract.files.restricted_pickle import PickleInvalid, PickleRunsCode, read_state_dict
from eyas.contract.files.torch_bin_header import (
    BinBigEndian,
    BinRecordMissing,
    BinTensorBounds,
    BinTensorName,
    read_torch_bin_header,
)
from eyas.contract.files.zip_records import BinDirectoryInvalid, BinNotZip, read_zip_records
from pickle_bytes import state_dict, tensor


def write_bin(path: Path, data: bytes, *, method: int = zipfile.ZIP_STORED, **records: bytes) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("archive/data.pkl", data)
        for name, content in ({"data/0": b"\0" * 24} | records).items():
            archive.writestr(f"archive/{name}", content)
    return path


class Danger:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/eyas-was-run",)


def test_names_shapes_dtypes_and_bytes_are_those_that_torch_saved(tmp_path: Path):
    torch = pytest.importorskip("torch")
    base = torch.randn(4, 6)
    state = collections.OrderedDict(
        a=torch.nn.Parameter(base[1:3].clone()), b=torch.arange(5), c=torch.ones(7, dtype=torch.bool),
        d=base[2], e=torch.randn(2, 2).to(torch.bfloat16), f=torch.tensor(3.0), g=base.t(),
    )  # fmt: skip
    torch.save(state, tmp_path / "pytorch_model.bin")

    header = read_torch_bin_header(tmp_path / "pytorch_model.bin")

    assert {n: (i.dtype, i.shape) for n, i in header.items()} == {
        "a": ("F32", (2, 6)), "b": ("I64", (5,)), "c": ("BOOL", (7,)), "d": ("F32", (6,)), "e": ("BF16", (2, 2)),
        "f": ("F32", ()), "g": ("F32", (6, 4)),
    }  # fmt: skip
    data = (tmp_path / "pytorch_model.bin").read_bytes()
    for name in "abcdef":
        info = header[name]
        wanted = bytes(state[name].detach().contiguous().reshape(-1).view(torch.uint8).numpy())
        assert data[info.begin : info.end] == wanted, name
    assert header["g"].begin is None
    assert "strided" in (header["g"].record or "")


def test_a_pickle_with_code_is_refused_by_name_and_not_run(tmp_path: Path):
    Path("/tmp/eyas-was-run").unlink(missing_ok=True)
    path = write_bin(tmp_path / "m.bin", pickle.dumps({"w": Danger()}, protocol=2))

    with pytest.raises(PickleRunsCode) as caught:
        read_torch_bin_header(path)

    assert "system" in caught.value.what
    assert not Path("/tmp/eyas-was-run").exists()


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_code_is_refused_in_every_protocol(protocol: int):
    with pytest.raises((PickleRunsCode, PickleInvalid)):
        read_state_dict(pickle.dumps(Danger(), protocol=protocol), "here")


@pytest.mark.parametrize(
    "name", ["builtins.eval", "torch.load", "collections.namedtuple", "torch._utils._rebuild_tensor_v2.x", "os.system"]
)
def test_a_global_outside_the_list_is_refused(name: str):
    module, attribute = name.rsplit(".", 1)
    with pytest.raises(PickleRunsCode):
        read_state_dict(f"\x80\x02c{module}\n{attribute}\n.".encode("latin-1"), "here")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"\x80\x02N.",
        b"\x80\x02}(K\x01K\x02u.",
        b"\x80\x02}X\x01\0\0\0aK\x01s.",
        b"\x80\x02(((.",
        b"\x80\x02h\x05.",
        b"\x80\x02R.",
        b"\x80\x02\x86.",
        state_dict(("a", tensor()), ("a", tensor())),
        state_dict(("a", tensor(stride=b"K\x01\x85"))),
        b"\x80\x02" + b"(" * 10_000 + b"t" * 9_999 + b".",
        b"\x80\x04\x8e" + (1 << 60).to_bytes(8, "little"),
        b"\x80\x02\x8b" + (1 << 30).to_bytes(4, "little"),
    ],
)
def test_a_malformed_pickle_is_an_error_not_a_crash(data: bytes):
    with pytest.raises(PickleInvalid):
        read_state_dict(data, "here")


def test_hand_written_state_dicts_are_read(tmp_path: Path):
    path = write_bin(tmp_path / "m.bin", state_dict(("w", tensor())))
    assert {n: i.shape for n, i in read_torch_bin_header(path).items()} == {"w": (2, 3)}


def test_a_tensor_beyond_its_storage_is_refused(tmp_path: Path):
    for bad in (tensor(offset=1), tensor(elements=5), tensor(shape=b"K\x02K\x7f\x86")):
        with pytest.raises(BinTensorBounds):
            read_torch_bin_header(write_bin(tmp_path / "m.bin", state_dict(("w", bad))))


def test_a_storage_without_its_record_is_refused(tmp_path: Path):
    with pytest.raises(BinRecordMissing):
        read_torch_bin_header(write_bin(tmp_path / "m.bin", state_dict(("w", tensor(key="../../x")))))


def test_a_zip_that_is_no_checkpoint_is_refused(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "m.bin", "w") as archive:
        archive.writestr("other", b"")
    with pytest.raises(BinRecordMissing):
        read_torch_bin_header(tmp_path / "m.bin")


def test_big_endian_files_are_refused(tmp_path: Path):
    with pytest.raises(BinBigEndian):
        read_torch_bin_header(write_bin(tmp_path / "m.bin", state_dict(("w", tensor())), byteorder=b"big"))


def test_unprintable_names_are_refused(tmp_path: Path):
    with pytest.raises(BinTensorName):
        read_torch_bin_header(write_bin(tmp_path / "m.bin", state_dict(("\x1b[2J", tensor()))))


def test_files_before_the_zip_format_are_named(tmp_path: Path):
    (tmp_path / "m.bin").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(BinNotZip, match="before PyTorch 1"):
        read_zip_records(tmp_path / "m.bin")


def test_a_truncated_zip_is_named(tmp_path: Path):
    path = write_bin(tmp_path / "m.bin", state_dict(("w", tensor())))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(BinNotZip, match="truncated"):
        read_zip_records(path)


def test_compressed_records_are_refused(tmp_path: Path):
    with pytest.raises(BinDirectoryInvalid, match="compressed"):
        read_zip_records(write_bin(tmp_path / "m.bin", b"x" * 1000, method=zipfile.ZIP_DEFLATED))


def test_two_records_of_one_name_are_refused(tmp_path: Path):
    with warnings.catch_warnings(), zipfile.ZipFile(tmp_path / "m.bin", "w") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("a/data.pkl", b"1")
        archive.writestr("a/data.pkl", b"2")
    with pytest.raises(BinDirectoryInvalid, match="twice"):
        read_zip_records(tmp_path / "m.bin")
