"""The arrays of a folder of rows: written once, then read row by row from a memory map."""

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from eyas.data.tokenise import TokenRow
from eyas.records.rows import MANIFEST, TENSORS, RowsManifest, RowsUnreadable, read_manifest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class RowWriter:
    """Collects rows in flat arrays (5 bytes a token) and writes them as one file."""

    def __init__(self) -> None:
        self._ids, self._supervised, self._starts = array("i"), bytearray(), array("q", [0])
        self._files, self._lines = array("i"), array("q")
        self.num_supervised, self.longest = 0, 0

    def add(self, row: TokenRow, source: int, line: int) -> None:
        """Append a row read from record `line` of data file `source`."""
        self._ids.extend(row.token_ids)
        self._supervised.extend(row.is_supervised)
        self._starts.append(len(self._ids))
        self._files.append(source)
        self._lines.append(line)
        self.num_supervised += row.num_supervised
        self.longest = max(self.longest, len(row.token_ids))

    @property
    def num_rows(self) -> int:
        """Rows so far."""
        return len(self._files)

    @property
    def num_tokens(self) -> int:
        """Tokens so far."""
        return len(self._ids)

    def write(self, folder: Path) -> None:
        """Write `rows.safetensors` into a folder that is still aside."""
        import numpy as np
        from safetensors.numpy import save_file

        tensors = {
            "token_ids": np.frombuffer(self._ids, dtype=np.int32),
            "is_supervised": np.frombuffer(self._supervised, dtype=np.bool_),
            "row_starts": np.frombuffer(self._starts, dtype=np.int64),
            "source_file": np.frombuffer(self._files, dtype=np.int32),
            "source_line": np.frombuffer(self._lines, dtype=np.int64),
        }
        save_file(tensors, folder / TENSORS)
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
        try:
            tensors = load_file(folder / TENSORS)
            self._ids: NDArray[np.int32] = tensors["token_ids"]
            self._supervised: NDArray[np.bool_] = tensors["is_supervised"]
            self._starts: NDArray[np.int64] = tensors["row_starts"]
        except (OSError, KeyError, SafetensorError) as error:
            raise _damaged(folder, f"{type(error).__name__}: {error}") from error
        counted = (len(self._starts) - 1, len(self._ids), int(self._supervised.sum()))
        stated = (self.manifest.num_rows, self.manifest.num_tokens, self.manifest.num_supervised)
        if counted != stated:
            raise _damaged(folder, f"{MANIFEST} says {stated} rows, tokens, supervised tokens; {TENSORS} has {counted}")

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> TokenRow:
        if not 0 <= index < len(self):
            raise IndexError(index)
        begin, end = int(self._starts[index]), int(self._starts[index + 1])
        return TokenRow(tuple(self._ids[begin:end].tolist()), tuple(self._supervised[begin:end].tolist()))

    def __iter__(self) -> Iterator[TokenRow]:
        return (self[index] for index in range(len(self)))

    def length(self, index: int) -> int:
        """Tokens of one row."""
        return int(self._starts[index + 1] - self._starts[index])

    def supervised_counts(self, vocab_size: int) -> "NDArray[np.int64]":
        """How often each token id is supervised, [vocab_size]."""
        import numpy as np

        counts: NDArray[np.int64] = np.bincount(self._ids[self._supervised], minlength=vocab_size)
        return counts


def _damaged(folder: Path, why: str) -> RowsUnreadable:
    return RowsUnreadable(
        f"the rows in {folder} are damaged",
        str(folder / TENSORS),
        why,
        "delete the folder and run `eyas prepare` again",
    )
