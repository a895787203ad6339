"""The bytes of planned tensors: copied in bounded slices (by the kernel where it can), compared and checksummed."""

import errno
import hashlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from eyas.contract.convert.conversion import PlannedTensor, SourceChanged, SourceRange, SourceView
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


SLICE_BYTES = 64 << 20  # most that one step moves
_BUFFER_BYTES = 1 << 20  # own memory when the kernel cannot copy, and for comparing
_SAMPLE_BYTES = 1 << 16
_NO_KERNEL_COPY = (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF, errno.EPERM)


def copy_range(source: int, begin: int, length: int, target: int, at: int, path: Path) -> None:
    """Copy `length` bytes at `begin` of the open file `source` to offset `at` of the open file `target`.

    Raises:
        SourceChanged: the source ends before that.
        OSError: the target cannot be written.
    """
    done = 0
    while done < length:
        try:
            copied = os.copy_file_range(source, target, min(length - done, SLICE_BYTES), begin + done, at + done)
        except OSError as error:
            if error.errno not in _NO_KERNEL_COPY:
                raise
            break
        if copied == 0:
            break
        done += copied
    if done < length:
        _copy_through_memory(source, begin + done, length - done, target, at + done, path)


def _copy_through_memory(source: int, begin: int, length: int, target: int, at: int, path: Path) -> None:
    buffer = memoryview(bytearray(min(_BUFFER_BYTES, length)))
    done = 0
    while done < length:
        part = buffer[: min(len(buffer), length - done)]
        count = os.preadv(source, [part], begin + done)
        if count == 0:
            raise ended_early(path, begin + done)
        written = 0
        while written < count:
            written += os.pwrite(target, part[written:count], at + done + written)
        done += count


def compare_ranges(
    first: int, first_begin: int, second: int, second_begin: int, length: int, *, with_checksum: bool = False
) -> tuple[bool, int]:
    """Whether two ranges hold the same bytes, and the CRC-32 of the second (0 unless asked for: it costs most)."""
    size = min(_BUFFER_BYTES, length)
    left, right = bytearray(size), bytearray(size)
    checksum, done = 0, 0
    while done < length:
        step = min(size, length - done)
        if not _fill(first, left, first_begin + done, step) or not _fill(second, right, second_begin + done, step):
            return False, checksum
        # whole bytearrays compare by memcmp; a memoryview would compare item by item
        if (left != right) if step == size else (left[:step] != right[:step]):
            return False, checksum
        if with_checksum:
            checksum = zlib.crc32(memoryview(right)[:step], checksum)
        done += step
    return True, checksum


def checksum_range(file: int, begin: int, length: int) -> int:
    """CRC-32 of a range; a range that ends early is an error of the caller."""
    buffer, checksum, done = bytearray(min(_BUFFER_BYTES, max(1, length))), 0, 0
    while done < length:
        step = min(len(buffer), length - done)
        assert _fill(file, buffer, begin + done, step), "the file was measured before"
        checksum = zlib.crc32(memoryview(buffer)[:step], checksum)
        done += step
    return checksum


def sample_range(file: int, begin: int, length: int) -> str:
    """A fingerprint of three samples of 64 KiB of a range (start, middle, end) and its length.

    Reading all of a head to name it would cost as much as copying it. A change that lies between the samples is not
    seen; another training run changes all of them.
    """
    size = min(_SAMPLE_BYTES, length)
    digest = hashlib.sha256(str(length).encode())
    for at in (0, (length - size) // 2, length - size):
        digest.update(os.pread(file, size, begin + at))
    return digest.hexdigest()[:16]


def _fill(file: int, buffer: bytearray, begin: int, length: int) -> bool:
    done = 0
    while done < length:
        count = os.preadv(file, [memoryview(buffer)[done:length]], begin + done)
        if count == 0:
            return False
        done += count
    return True


def ended_early(path: Path, at: int) -> SourceChanged:
    """The `SourceChanged` for a source that ends at byte `at`."""
    return SourceChanged(
        f"{path.name} ended early",
        str(path),
        f"byte {at} was there when the headers were read and is gone now: another process writes to the source",
        "wait until the source is complete, then convert again",
    )
