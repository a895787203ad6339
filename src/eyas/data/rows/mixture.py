"""Several data files in one set of rows, each taken as often as its weight says."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eyas.data.prepare_config import ConfigInvalid
from eyas.records.data_files import list_files
from eyas.talk import Talk

_MOST = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One file of conversations.

    Attributes:
        weight: how often each of its rows stands in the result; a fraction takes that share of them.
    """

    path: Path
    weight: float = 1.0


def data_files(named: Sequence[str | Path], talk: Talk | None = None) -> list[DataFile]:
    """The files that `--data` values stand for: `F` or `F:WEIGHT`, files or folders of files.

    Raises:
        ConfigInvalid: a weight that is not above 0 and at most 100.
        DataMissing: see `list_files`.
    """
    return [
        DataFile(path=file, weight=weight)
        for path, weight in map(_path_and_weight, named)
        for file in list_files([path], talk)
    ]


def times(row: Sequence[int], weight: float) -> int:
    """How often a row is taken: the weight's whole part, and once more for a share of rows that their ids decide."""
    whole = int(weight)
    share = weight - whole
    if not share:
        return whole
    return whole + (zlib.crc32(repr(tuple(row)).encode()) < share * 2**32)


def _path_and_weight(named: str | Path) -> tuple[Path, float]:
    text = str(named)
    if not text:
        raise ConfigInvalid(
            "--data is empty", "--data ''", "it would mean this folder", "name a file, or give `.` for this folder"
        )
    head, colon, tail = text.rpartition(":")
    if not colon or not head or Path(text).exists():
        return Path(named), 1.0
    try:
        weight = float(tail)
    except ValueError:
        return Path(named), 1.0
    if not 0 < weight <= _MOST:
        raise ConfigInvalid(
            f"a weight of {tail}",
            f"--data {text}",
            f"it says how often each row is taken: above 0, at most {_MOST:.0f}",
            "give FILE:0.5 for half of the rows, FILE:2 for all of them twice",
        )
    return Path(head), weight
