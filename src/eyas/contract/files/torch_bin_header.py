"""What a `pytorch_model.bin` holds: names, shapes, dtypes, byte ranges. No torch, no pickle, no weights read."""

from collections.abc import Mapping
from pathlib import Path

from eyas.contract.files.checkpoint import DTYPE_BITS, TensorInfo
from eyas.contract.files.json_file import unreadable
from eyas.contract.files.restricted_pickle import MAX_PICKLE_BYTES, PickledTensor, read_state_dict
from eyas.contract.files.zip_records import ZipRecord, read_zip_records
from eyas.errors import EyasError


class BinRecordMissing(EyasError):
    """The zip lacks a record that a state dict needs."""

    code = "bin-record-missing"


class BinBigEndian(EyasError):
    """Saved on a big-endian machine."""

    code = "bin-big-endian"


class BinTensorBounds(EyasError):
    """A tensor reaches beyond its storage record."""

    code = "bin-tensor-bounds"


class BinTensorName(EyasError):
    """A tensor's name is not printable or too long."""

    code = "bin-tensor-name"


def read_torch_bin_header(path: Path) -> dict[str, TensorInfo]:
    """Name -> entry of every tensor in the `.bin` file `path`.

    A tensor whose bytes do not lie in one run has no byte range, and says so in `record`.

    Raises:
        FileUnreadable, BinNotZip, BinDirectoryInvalid: the container.
        BinRecordMissing, BinBigEndian, BinTensorBounds, BinTensorName: its contents.
        PickleRunsCode, PickleInvalid: the pickle inside.
    """
    records = read_zip_records(path)
    prefix = _root(records, path)
    order = records.get(f"{prefix}byteorder")
    if order is not None and _read(path, order, 16) != b"little":
        raise BinBigEndian(
            f"{path.name} was saved on a big-endian machine",
            str(path),
            "its numbers would be read byte-swapped",
            "load it with torch and save it as safetensors",
        )
    pickle_record = records[f"{prefix}data.pkl"]
    where = f"{path}: {prefix}data.pkl"
    tensors = read_state_dict(_read(path, pickle_record, MAX_PICKLE_BYTES + 1), where)
    return {name: _entry(name, tensor, records, prefix, path) for name, tensor in tensors.items()}


def _root(records: Mapping[str, ZipRecord], path: Path) -> str:
    roots = [name.removesuffix("data.pkl") for name in records if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(roots) != 1:
        raise BinRecordMissing(
            f"{path.name} has no record NAME/data.pkl",
            str(path),
            f"its {len(records)} records begin with {', '.join(sorted(records)[:3])[:120]}",
            "this is a zip, but not one that torch.save wrote: check the file",
        )
    return roots[0]


def _read(path: Path, record: ZipRecord, limit: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(record.begin)
            return file.read(min(record.end - record.begin, limit))
    except OSError as error:
        raise unreadable(path, str(error)) from None


def _entry(name: str, tensor: PickledTensor, records: Mapping[str, ZipRecord], prefix: str, path: Path) -> TensorInfo:
    if not name or len(name) > 1024 or not name.isprintable():
        raise BinTensorName(
            f"tensor name {name[:80]!r}", str(path), "names are 1 to 1024 printable characters", "save the file again"
        )
    record = records.get(f"{prefix}data/{tensor.storage.key}")
    if record is None:
        raise BinRecordMissing(
            f"tensor {name!r} has no data",
            str(path),
            f"the record {prefix}data/{tensor.storage.key[:40]} is not in the zip",
            "download or save the file again",
        )
    item_bytes = DTYPE_BITS[tensor.storage.dtype] // 8
    empty = 0 in tensor.shape
    last = tensor.offset + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride, strict=True))
    available = (record.end - record.begin) // item_bytes
    if not empty and last >= min(available, tensor.storage.num_elements):
        raise BinTensorBounds(
            f"tensor {name!r} reaches beyond its storage",
            str(path),
            f"it needs element {last}, its record holds {available} and claims {tensor.storage.num_elements}",
            "the file is damaged: download or save it again",
        )
    info = TensorInfo(dtype=tensor.storage.dtype, shape=tensor.shape, file=path.name)
    if not tensor.is_contiguous:
        return TensorInfo(
            dtype=info.dtype, shape=info.shape, file=info.file, record=f"a strided view, stride {list(tensor.stride)}"
        )
    begin = record.begin + (0 if empty else tensor.offset * item_bytes)
    return TensorInfo(dtype=info.dtype, shape=info.shape, file=info.file, begin=begin, end=begin + info.num_bytes)
