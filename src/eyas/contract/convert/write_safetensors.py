"""A safetensors file out of planned tensors: header first, then each range copied by the kernel.

Source: https://github.com/huggingface/safetensors, README "Format": 8 bytes length, JSON padded with blanks, data.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from eyas.contract.convert.conversion import PlannedTensor
from eyas.contract.convert.tensor_bytes import write_tensor


def write_safetensors(
    path: Path, tensors: Sequence[PlannedTensor], wrote: Callable[[PlannedTensor, int], object]
) -> None:
    """Write `tensors` in the given order (widest dtype first keeps them aligned).

    Args:
        wrote: called after each tensor with the offset of its data in the file.

    Raises:
        SourceChanged: a source file ended early.
        OSError: the disk is full, or the file cannot be written.
    """
    header = header_bytes(tensors)
    with open(path, "xb", buffering=0) as file:
        file.write(header)
        at = len(header)
        os.posix_fallocate(file.fileno(), 0, max(1, at + sum(t.num_bytes for t in tensors)))
        for tensor in tensors:
            write_tensor(tensor, file.fileno(), at)
            wrote(tensor, at)
            at += tensor.num_bytes


def header_bytes(tensors: Sequence[PlannedTensor]) -> bytes:
    """Length field and header, padded so that the data begin at a multiple of 8."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in tensors:
        end = at + tensor.num_bytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
