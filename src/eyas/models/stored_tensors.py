"""Single tensors out of weight files of any size: only their own bytes are read, and no file is mapped.

A private map of a 50 GB shard, which safetensors' own reader makes, fails where memory may not be overcommitted.
"""

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from eyas.contract.files.checkpoint import TensorInfo

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


def stored_tensors(root: Path, wanted: Mapping[str, TensorInfo]) -> Iterator[tuple[str, Tensor]]:
    """Name and contents (on the CPU, as stored) of tensors in safetensors or .bin files, file by file.

    Args:
        root: folder of the files.
        wanted: name of each tensor and where it stands.

    Raises:
        OSError: a file cannot be read, or ends before the tensor does.
    """
    for file in dict.fromkeys(info.file for info in wanted.values()):
        assert file is not None, "a checkpoint with weights"
        inside = {name: info for name, info in wanted.items() if info.file == file}
        if any(info.begin is None or info.dtype not in _DTYPES for info in inside.values()):
            pickled = torch.load(root / file, map_location="cpu", weights_only=True, mmap=True)
            yield from ((name, pickled[name]) for name in inside)
        else:
            yield from ((name, _read(root / file, info)) for name, info in inside.items())


def _read(path: Path, info: TensorInfo) -> Tensor:
    raw = torch.empty(info.num_bytes, dtype=torch.uint8)
    assert info.begin is not None, "asked only where it is known"
    with path.open("rb", buffering=0) as file:
        file.seek(info.begin)
        view, done = memoryview(raw.numpy().data), 0
        while done < info.num_bytes:
            got = file.readinto(view[done:])
            if not got:
                raise OSError(f"{path} ends inside a tensor")
            done += got
    return raw.view(_DTYPES[info.dtype]).view(info.shape) if prod(info.shape) else torch.empty(info.shape)
