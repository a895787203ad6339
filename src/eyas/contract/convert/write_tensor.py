"""One planned tensor's bytes into an open file, whatever its source."""

import os
from collections.abc import Iterator
from pathlib import Path

from eyas.contract.convert.conversion import PlannedTensor, SourceRange, SourceView
from eyas.contract.convert.copy_bytes import SLICE_BYTES, copy_range, ended_early
from eyas.errors import EnvironmentMissing


def write_tensor(tensor: PlannedTensor, target: int, at: int) -> None:
    """Write the data of `tensor` to offset `at` of the open file `target`.

    Raises:
        SourceChanged: the source file ended early, or is not there any more.
        EnvironmentMissing: a strided view in a `.bin` needs torch, which is not installed.
        OSError: the target cannot be written.
    """
    source = tensor.source
    if isinstance(source, bytes):
        _write_all(target, source, at)
    elif isinstance(source, SourceRange):
        file = open_source(source.path)
        try:
            copy_range(file, source.begin, source.end - source.begin, target, at, source.path)
        finally:
            os.close(file)
    else:
        for data in view_slices(source):
            _write_all(target, data, at)
            at += len(data)


def open_source(path: Path) -> int:
    """A descriptor of a source file."""
    try:
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise ended_early(path, 0) from error


def view_slices(source: SourceView) -> Iterator[bytes]:
    """The rows of a strided tensor, in slices; torch reads them, with `weights_only`."""
    try:
        import torch
    except ImportError:
        raise EnvironmentMissing(
            f"{source.name} is a strided view, which only torch can read",
            str(source.path),
            "its bytes do not lie in one run, and torch is not installed",
            "pip install 'eyas[torch]', or save the draft again with .contiguous()",
        ) from None
    state = torch.load(source.path, map_location="cpu", weights_only=True, mmap=True)
    tensor = state[source.name]
    if tensor.ndim == 0:
        tensor = tensor.reshape(1)
    row_bytes = max(1, tensor[:1].numel() * tensor.element_size())
    rows = max(1, SLICE_BYTES // row_bytes)
    for part in tensor.split(rows):
        yield _bytes_of(part)


def _bytes_of(part: object) -> bytes:
    import torch

    assert isinstance(part, torch.Tensor), "torch.load gave a tensor"
    return bytes(part.detach().contiguous().view(torch.uint8).reshape(-1).numpy())


def _write_all(target: int, data: bytes, at: int) -> None:
    view, done = memoryview(data), 0
    while done < len(view):
        done += os.pwrite(target, view[done : done + SLICE_BYTES], at + done)
