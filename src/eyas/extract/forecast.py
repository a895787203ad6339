"""Whether the states fit the disk, before the first byte, and what would make them fit."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eyas.errors import ExitCode, EyasError
from eyas.store.about import StoreAbout
from eyas.talk import counted

_INDEX_BYTES_PER_TOKEN, _INDEX_BYTES_PER_ROW = 5, 60
_SPARE = 1.02  # a file system keeps some


class StoreTooLarge(EyasError):
    """The states need more disk space than is free."""

    code = "store-too-large"
    exit_code = ExitCode.ENVIRONMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSizes:
    """Rows whose states are to be written.

    Attributes:
        lengths: tokens, int64 [R].
        supervised_from: index of the first supervised token of each, its length where there is none, int64 [R].
    """

    lengths: "NDArray[np.int64]"
    supervised_from: "NDArray[np.int64]"

    def firsts(self, keep_prompt: int | None) -> "NDArray[np.int64]":
        """First position kept of each row: `keep_prompt` tokens before the first supervised one; None = all."""
        if keep_prompt is None:
            return np.zeros(len(self.lengths), np.int64)
        return np.minimum(np.maximum(self.supervised_from - keep_prompt, 0), self.lengths - 1)

    def num_bytes(self, about: StoreAbout, keep_prompt: int | None) -> int:
        """On the disk."""
        positions = int((self.lengths - self.firsts(keep_prompt)).sum())
        index = int(self.lengths.sum()) * _INDEX_BYTES_PER_TOKEN + len(self.lengths) * _INDEX_BYTES_PER_ROW
        return positions * about.position_bytes + index


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a run will write.

    Attributes:
        num_rows, num_tokens: that are missing in the store.
        needed_bytes, free_bytes: on the disk of the store.
        others: what the same rows would need otherwise: option -> bytes.
    """

    num_rows: int
    num_tokens: int
    needed_bytes: int
    free_bytes: int
    others: Mapping[str, int]

    def __str__(self) -> str:
        others = ", ".join(f"{_size(num)} with {option}" for option, num in self.others.items())
        return (
            f"{counted(self.num_rows, 'row')}, {self.num_tokens} tokens: {_size(self.needed_bytes)} needed,"
            f" {_size(self.free_bytes)} free" + (f" ({others})" if others else "")
        )

    def require_fits(self, folder: Path) -> None:
        """Raise `StoreTooLarge` where they do not fit, with the options that would make them."""
        if self.needed_bytes * _SPARE <= self.free_bytes:
            return
        fitting = [f"{o} ({_size(n)})" for o, n in self.others.items() if n * _SPARE <= self.free_bytes]
        ways = [f"add {way}" for way in fitting] or ["use a disk of that size"]
        raise StoreTooLarge(
            f"the states need {_size(self.needed_bytes)}, and {_size(self.free_bytes)} are free",
            str(folder),
            f"{self.num_tokens} tokens of {self.num_rows} rows that the store does not hold yet",
            ("; or ".join(ways) + "; or keep no store: eyas train --stream URL"),
        )


def forecast(sizes: RowSizes, about: StoreAbout, keep_prompt: int | None, folder: Path) -> Forecast:
    """For rows that are to be written into the store in `folder`, which need not exist."""
    small = replace(about, dtype="float8_e4m3")
    ways = {"--keep-prompt 0": (about, 0), "--store-dtype float8_e4m3": (small, keep_prompt)}
    if about.dtype == "float8_e4m3":
        ways.pop("--store-dtype float8_e4m3")
    elif keep_prompt is None:
        ways["--store-dtype float8_e4m3 --keep-prompt 0"] = (small, 0)
    if keep_prompt is not None:
        ways.pop("--keep-prompt 0")
    return Forecast(
        num_rows=len(sizes.lengths),
        num_tokens=int(sizes.lengths.sum()),
        needed_bytes=sizes.num_bytes(about, keep_prompt),
        free_bytes=free_bytes(folder),
        others={option: sizes.num_bytes(*way) for option, way in ways.items()},
    )


def free_bytes(folder: Path) -> int:
    """Free space where `folder` is or will be, for this user."""
    at = next(place for place in (folder.absolute(), *folder.absolute().parents) if os.path.exists(place))
    return shutil.disk_usage(at).free


def _size(num: int) -> str:
    unit, name = next((pair for pair in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")) if num >= pair[0]), (1e3, "kB"))
    return f"{num / unit:.1f} {name}"
