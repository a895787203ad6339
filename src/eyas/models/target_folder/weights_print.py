"""A fingerprint of weight files that a terabyte does not make slow: their headers whole, of their data a little of each
tensor."""

from collections.abc import Sequence
from pathlib import Path

from eyas.contract.files.checkpoint import TensorInfo
from eyas.contract.files.safetensors_header import read_safetensors_header
from eyas.records import fingerprint

_SAMPLE_BYTES = 1 << 16  # at start, middle and end of each file
_TENSOR_BYTES = 1 << 12  # in the middle of a tensor
_MOST_TENSORS = 1024  # of all files together: each may be a seek on a slow disk


def weights_print(files: Sequence[Path]) -> str:
    """Of the files' names, sizes, headers (names, types, shapes and places of all tensors) and samples of their data.

    Sampled are 64 KiB at start, middle and end of each file, and 4 KiB in the middle of each tensor; of more than 1024
    tensors in all, of that many, chosen by their names. Whatever trains a tensor changes nearly all of it, and is seen.
    A change of some bytes elsewhere is not.

    Raises:
        What `contract.safetensors_header.read_safetensors_header` raises.
    """
    headers = {path: read_safetensors_header(path) for path in files}
    names = sorted((fingerprint.of_bytes(name.encode()), name) for h in headers.values() for name in h.tensors)
    chosen = {name for _, name in names[:_MOST_TENSORS]}
    parts: list[object] = []
    for path, header in headers.items():
        tensors = [info for name, info in header.tensors.items() if name in chosen]
        parts.append([path.name, path.stat().st_size, *_samples(path, header.data_begin, tensors)])
    return fingerprint.of_json(parts)


def _samples(path: Path, data_begin: int, tensors: Sequence[TensorInfo]) -> list[str]:
    size = path.stat().st_size
    places = [(0, data_begin), *((at, _SAMPLE_BYTES) for at in (0, size // 2, max(0, size - _SAMPLE_BYTES)))]
    for info in tensors:
        assert info.begin is not None, "a header says where its tensors are"
        length = min(_TENSOR_BYTES, info.num_bytes)
        places.append((info.begin + (info.num_bytes - length) // 2, length))
    found = []
    with open(path, "rb") as file:
        for at, length in places:
            file.seek(at)
            found.append(fingerprint.of_bytes(file.read(length)))
    return found
