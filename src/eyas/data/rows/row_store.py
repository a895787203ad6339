"""The arrays of a folder of rows: written once, then read row by row from a memory map."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eyas.data.text.tokenise import TokenRow
from eyas.records import fingerprint
from eyas.records.rows import MANIFEST, TENSORS, RowsManifest, RowsUnreadable, read_manifest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Properties of `RowArrays` that the manifest repeats, to be held to.
ROW_COUNTS = ("num_rows", "num_tokens", "num_supervised", "longest", "content")
_SLICE = 1 << 22  # entries
# Field of `RowArrays` -> tensor of the file.
_NAMES = {
    "token_ids": "token_ids",
    "is_supervised": "is_supervised",
    "starts": "row_starts",
    "files": "source_file",
    "lines": "source_line",
}


class RowWriter:
    """Collects rows in flat arrays (5 bytes a token)."""

    def __init__(self) -> None:
        self._ids, self._supervised, self._starts = array("i"), bytearray(), array("q", [0])
        self._files, self._lines = array("i"), array("q")

    def add(self, row: TokenRow, source: int, line: int) -> None:
        """Append a row read from record `line` of data file `source`."""
        self._ids.extend(row.token_ids)
        self._supervised.extend(row.is_supervised)
        self._starts.append(len(self._ids))
        self._files.append(source)
        self._lines.append(line)

    @property
    def num_rows(self) -> int:
        """Rows so far."""
        return len(self._files)

    def arrays(self) -> "RowArrays":
        """What was collected; nothing can be added afterwards."""
        import numpy as np

        return RowArrays(
            token_ids=np.frombuffer(self._ids, dtype=np.int32),
            is_supervised=np.frombuffer(self._supervised, dtype=np.bool_),
            starts=np.frombuffer(self._starts, dtype=np.int64),
            files=np.frombuffer(self._files, dtype=np.int32),
            lines=np.frombuffer(self._lines, dtype=np.int64),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowArrays:
    """R rows of N tokens in all; see `records.rows`.

    Attributes:
        token_ids: int32 [N].
        is_supervised: bool [N].
        starts: int64 [R + 1].
        files, lines: int32 and int64 [R], where each row was read.
    """

    token_ids: "NDArray[np.int32]"
    is_supervised: "NDArray[np.bool_]"
    starts: "NDArray[np.int64]"
    files: "NDArray[np.int32]"
    lines: "NDArray[np.int64]"

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.starts) - 1

    @property
    def num_tokens(self) -> int:
        """N."""
        return len(self.token_ids)

    @property
    def num_supervised(self) -> int:
        """Tokens that carry loss."""
        return int(self.is_supervised.sum())

    @property
    def longest(self) -> int:
        """Tokens of the longest row; 0 without rows."""
        return int((self.starts[1:] - self.starts[:-1]).max(initial=0))

    def row(self, index: int) -> TokenRow:
        """One row."""
        part = slice(int(self.starts[index]), int(self.starts[index + 1]))
        return TokenRow(tuple(self.token_ids[part].tolist()), tuple(self.is_supervised[part].tolist()), index)

    def take(self, rows: "NDArray[np.int64]") -> "RowArrays":
        """These rows in this order; an index may occur several times."""
        import numpy as np

        lengths = (self.starts[1:] - self.starts[:-1])[rows]
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        places = np.arange(starts[-1]) + np.repeat(self.starts[:-1][rows] - starts[:-1], lengths)
        return RowArrays(
            token_ids=self.token_ids[places],
            is_supervised=self.is_supervised[places],
            starts=starts,
            files=self.files[rows],
            lines=self.lines[rows],
        )

    @property
    def content(self) -> str:
        """Fingerprint of what is learned: ids, mask and where rows begin, however wide the ids are stored."""
        import numpy as np

        return fingerprint.of_parts(
            array[at : at + _SLICE].astype(dtype).tobytes()
            for array, dtype in ((self.token_ids, np.int32), (self.is_supervised, np.bool_), (self.starts, np.int64))
            for at in range(0, len(array), _SLICE)
        )

    def write(self, folder: Path) -> None:
        """Write `rows.safetensors` into `folder`: 3 bytes a token where ids fit 16 bits, else 5."""
        import numpy as np
        from safetensors.numpy import save_file

        is_small = self.num_tokens == 0 or int(self.token_ids.max()) < 2**16
        tensors = {name: getattr(self, field) for field, name in _NAMES.items()}
        save_file(tensors | ({"token_ids": self.token_ids.astype(np.uint16)} if is_small else {}), folder / TENSORS)
        (folder / TENSORS).chmod(0o644)  # safetensors makes it readable by the owner only


class Rows:
    """The rows of a folder, in memory.

    Raises:
        RowsUnreadable: manifest and arrays are missing or disagree.
    """

    def __init__(self, folder: Path) -> None:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        self.folder = folder
        self.manifest: RowsManifest = read_manifest(folder)
        if not (folder / TENSORS).is_file():  # a pipe would be waited for
            raise damaged(folder / TENSORS, "it is not there, or not a regular file")
        try:
            tensors = load_file(folder / TENSORS)
            self._arrays = RowArrays(**{field: tensors[name] for field, name in _NAMES.items()})
        except (OSError, KeyError, SafetensorError) as error:
            raise damaged(folder / TENSORS, f"{type(error).__name__}: {error}") from error
        arrays, manifest = self._arrays, self.manifest
        if (reason := _why_no_rows(arrays)) is not None:
            raise damaged(folder / TENSORS, reason)
        for name in ROW_COUNTS:
            stated, found = getattr(manifest, name), getattr(arrays, name)
            if found != stated and (name != "content" or stated):
                raise damaged(folder / TENSORS, f"{MANIFEST} says {name} = {stated}; {TENSORS} has {found}")

    @classmethod
    def of(cls, folder: Path, manifest: RowsManifest, arrays: RowArrays) -> "Rows":
        """Rows that are in memory; `folder` is where they are from, for messages."""
        rows = cls.__new__(cls)
        rows.folder, rows.manifest, rows._arrays = folder, manifest, arrays
        return rows

    def __len__(self) -> int:
        return self._arrays.num_rows

    def __getitem__(self, index: int) -> TokenRow:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._arrays.row(index)

    def __iter__(self) -> Iterator[TokenRow]:
        return (self[index] for index in range(len(self)))

    def length(self, index: int) -> int:
        """Tokens of one row."""
        return int(self._arrays.starts[index + 1] - self._arrays.starts[index])

    def require_within(self, vocab_size: int) -> None:
        """Raise `RowsUnreadable` where a token id is not below `vocab_size`."""
        highest = int(self._arrays.token_ids.max(initial=0))
        if highest >= vocab_size:
            raise damaged(self.folder / TENSORS, f"it holds the token id {highest}; the target has {vocab_size}")

    def supervised_counts(self, vocab_size: int) -> "NDArray[np.int64]":
        """How often each token id is supervised, [vocab_size]."""
        import numpy as np

        counts: NDArray[np.int64] = np.bincount(
            self._arrays.token_ids[self._arrays.is_supervised], minlength=vocab_size
        )
        return counts


def _why_no_rows(arrays: RowArrays) -> str | None:
    """What is wrong with a folder's arrays; None if they are rows."""
    ids, supervised, starts = arrays.token_ids, arrays.is_supervised, arrays.starts
    kinds = (ids.dtype.name, supervised.dtype.name, starts.dtype.name)
    if kinds[0] not in ("uint16", "int32") or kinds[1:] != ("bool", "int64"):
        return f"token_ids, is_supervised and row_starts are {', '.join(kinds)}"
    if (ids.ndim, supervised.ndim, starts.ndim) != (1, 1, 1) or len(ids) != len(supervised):
        return "the arrays do not have one entry per token"
    if not len(starts) or starts[0] != 0 or starts[-1] != len(ids) or not (starts[1:] > starts[:-1]).all():
        return f"row_starts does not divide {len(ids)} tokens into rows"
    return "a token id is negative" if int(ids.min(initial=0)) < 0 else None


def damaged(path: Path, why: str) -> RowsUnreadable:
    """The error for a file of a folder of rows that is not as it was written."""
    do = "delete the folder and run `eyas prepare` again"
    return RowsUnreadable(f"the rows in {path.parent} are damaged", str(path), why, do)
