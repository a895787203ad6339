"""Values of a tensor read from its file in small slices: floats of any stored width, without torch.

With numpy the whole tensor is scanned, 16 MiB at a time; without it, evenly spaced runs are sampled.
"""

import math
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from eyas.contract.files.checkpoint import Checkpoint, TensorInfo

_SLICE_BYTES = 16 << 20
_SAMPLED_VALUES = 1 << 15
_RUN_VALUES = 1 << 10
WIDTH_BYTES = {"BF16": 2, "F16": 2, "F32": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Of a tensor's finite values.

    Attributes:
        num_values: looked at; num_bad: NaN or infinite among them.
        kurtosis: fourth moment over the squared variance: 3 for a normal distribution, 1.8 for a uniform one.
        is_complete: every value was looked at; without numpy, samples of large tensors are.
    """

    num_values: int
    num_bad: int
    mean: float
    std: float
    minimum: float
    maximum: float
    kurtosis: float
    is_complete: bool


def can_read(checkpoint: Checkpoint, info: TensorInfo) -> bool:
    """The data lie in a file of plain floats."""
    return (
        checkpoint.root is not None
        and info.file is not None
        and info.begin is not None
        and info.dtype in WIDTH_BYTES
        and info.record is None
    )


def statistics(checkpoint: Checkpoint, info: TensorInfo) -> Statistics:
    """Moments of a readable tensor."""
    count = bad = 0
    low, high, sums = math.inf, -math.inf, [0.0, 0.0, 0.0, 0.0]
    numpy = _numpy()
    for values in _chunks(checkpoint, info, numpy):
        size, wrong, minimum, maximum, moments = _moments(values, numpy)
        count, bad = count + size, bad + wrong
        low, high = min(low, minimum), max(high, maximum)
        sums = [a + b for a, b in zip(sums, moments, strict=True)]
    good = max(1, count - bad)
    mean = sums[0] / good
    variance = max(0.0, sums[1] / good - mean * mean)
    fourth = sums[3] / good - 4 * mean * sums[2] / good + 6 * mean**2 * sums[1] / good - 3 * mean**4
    return Statistics(
        num_values=count,
        num_bad=bad,
        mean=mean,
        std=math.sqrt(variance),
        minimum=low,
        maximum=high,
        kurtosis=fourth / variance**2 if variance > 1e-30 else 0.0,
        is_complete=count == math.prod(info.shape),
    )


def rows(checkpoint: Checkpoint, info: TensorInfo, indices: Sequence[int]) -> list[Sequence[float]]:
    """Rows of a readable matrix, as floats."""
    width = info.shape[1]
    with _open(checkpoint, info) as file:
        return [_read(file, info, index * width, width) for index in indices]


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """Of two rows; 0 when one of them is zero."""
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    size = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b))
    return dot / size if size > 0 else 0.0


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def _open(checkpoint: Checkpoint, info: TensorInfo) -> IO[bytes]:
    assert checkpoint.root is not None, "can_read says so"
    assert info.file is not None, "can_read says so"
    return open(Path(checkpoint.root) / info.file, "rb")


def _read(file: IO[bytes], info: TensorInfo, first: int, count: int) -> Sequence[float]:
    assert info.begin is not None, "can_read says so"
    width = WIDTH_BYTES[info.dtype]
    file.seek(info.begin + first * width)
    return _floats(file.read(count * width), info.dtype)


def _floats(data: bytes, dtype: str) -> Sequence[float]:
    count = len(data) // WIDTH_BYTES[dtype]
    if dtype == "F32":
        return struct.unpack(f"<{count}f", data)
    if dtype == "F16":
        return struct.unpack(f"<{count}e", data)
    # bf16 is the upper half of an fp32
    wide = bytearray(4 * count)
    wide[2::4], wide[3::4] = data[0::2], data[1::2]
    return struct.unpack(f"<{count}f", bytes(wide))


def _chunks(checkpoint: Checkpoint, info: TensorInfo, numpy: Any) -> Iterator[Any]:
    total = math.prod(info.shape)
    with _open(checkpoint, info) as file:
        if numpy is None:
            runs = max(1, min(total // _RUN_VALUES, _SAMPLED_VALUES // _RUN_VALUES))
            for run in range(runs):
                first = run * (total // runs)
                yield _read(file, info, first, min(_RUN_VALUES, total - first))
            return
        assert info.begin is not None, "can_read says so"
        file.seek(info.begin)
        left = info.num_bytes
        while left > 0 and (data := file.read(min(left, _SLICE_BYTES))):
            left -= len(data)
            yield _as_numpy(data, info.dtype, numpy)


def _as_numpy(data: bytes, dtype: str, numpy: Any) -> Any:
    if dtype == "BF16":
        return (numpy.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return numpy.frombuffer(data, "<f2" if dtype == "F16" else "<f4").astype("<f4", copy=False)


def _moments(values: Any, numpy: Any) -> tuple[int, int, float, float, list[float]]:
    """Size, number of bad ones, extremes, and the sums of the first four powers of the finite ones."""
    if numpy is not None:
        finite = values[numpy.isfinite(values)].astype("f8")
        if not finite.size:
            return values.size, values.size, math.inf, -math.inf, [0.0] * 4
        square = finite * finite
        sums = [
            float(finite.sum()),
            float(square.sum()),
            float((square * finite).sum()),
            float((square * square).sum()),
        ]
        return values.size, int(values.size - finite.size), float(finite.min()), float(finite.max()), sums
    good = array("d", (v for v in values if math.isfinite(v)))
    sums = [sum(v**power for v in good) for power in (1, 2, 3, 4)]
    return len(values), len(values) - len(good), min(good, default=math.inf), max(good, default=-math.inf), sums
