"""The folder that a serving engine puts rows of states into: what it announces, and one row out of it.

The engine's side is `contract/engines/capture_site/eyas_spool.py`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from eyas.contract.files.json_file import read_json_object
from eyas.contract.files.safetensors_header import read_safetensors_header
from eyas.errors import EyasError
from eyas.extract.source import SourceFailed, SourceUnsupported
from eyas.store.about import NUMPY_DTYPES, StateDtype

_NAMES: dict[str, StateDtype] = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_READY = "ready.json"
_MOST_WORDS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Spool:
    """What a server hands over, and where.

    Attributes:
        folder: as this machine sees it.
        source: engine and version, "sglang==0.5.15.post1".
        boundaries, last, dtype, hidden_size: of its rows.
        context_length: longest row that the engine takes, tokens.
        limit_bytes: that rows may take before the engine waits; a row may take half of it.
    """

    folder: Path
    source: str
    boundaries: tuple[int, ...]
    last: Literal["post-norm", "pre-norm"]
    dtype: StateDtype
    hidden_size: int
    context_length: int
    limit_bytes: int

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's states."""
        return (len(self.boundaries) + 1) * self.hidden_size * NUMPY_DTYPES[self.dtype].itemsize

    @property
    def longest(self) -> int:
        """Tokens of the longest row that can be handed over."""
        return min(self.context_length, self.limit_bytes // 2 // self.token_bytes)


def open_spool(folder: Path) -> Spool:
    """The spool in `folder`.

    Raises:
        SourceUnsupported: there is none, or it announces something else.
    """
    try:
        document = read_json_object(folder / _READY)
        found = {name: document[name] for name in ("source", "last", "dtype")}
        counts = {name: document[name] for name in ("hidden_size", "context_length")}
        boundaries = tuple(document["boundaries"])
        if not all(type(n) is int and n > 0 for n in (*counts.values(), *boundaries, document["limit"])):
            raise ValueError("a size is not a whole number above 0")
        if found["dtype"] not in _NAMES.values() or found["last"] not in ("post-norm", "pre-norm"):
            raise ValueError(f"dtype {found['dtype']!r} and last state {found['last']!r}")
        return Spool(folder=folder, boundaries=boundaries, limit_bytes=document["limit"], **found, **counts)
    except (EyasError, OSError, ValueError, TypeError, KeyError) as error:
        raise SourceUnsupported(
            f"no server hands over states in {folder}",
            str(folder / _READY),
            error.why if isinstance(error, EyasError) else f"{type(error).__name__}: {error}",
            "start it with `eyas serve --engine sglang --capture STORE ...` on this machine, or name its folder:"
            " --from 'sglang://HOST:PORT?spool=FOLDER'",
        ) from error


def take_row(
    spool: Spool, name: str, token_ids: tuple[int, ...], timeout_s: float, is_over: Callable[[], bool]
) -> "NDArray[Any]":
    """Wait for the row `name`, take it out of the spool, and give its states [n, (A + 1) * Ht].

    Args:
        token_ids: of the row; what the engine computed must be these.
        is_over: asked while waiting; True ends it.

    Raises:
        SourceFailed: the engine says that it cannot, it does not come, or it is another row.
    """
    path, failed = spool.folder / f"{name}.row", spool.folder / f"{name}.failed"
    end = time.monotonic() + timeout_s
    while not path.exists():
        if failed.exists():
            with open(failed, encoding="utf-8", errors="replace") as file:
                why = file.read(_MOST_WORDS)
            failed.unlink()
            raise _row_failed(spool, name, why)
        if time.monotonic() > end or is_over():
            raise _row_failed(spool, name, f"the engine answered, and the row did not come within {timeout_s:.0f} s")
        time.sleep(0.001)
    states, ids = read_row(path, spool)
    path.unlink()  # the mapping keeps the memory until it is let go
    if tuple(ids.tolist()) != token_ids:
        raise _row_failed(spool, name, "its token ids are not those that were asked for")
    return states


def read_row(path: Path, spool: Spool) -> "tuple[NDArray[Any], NDArray[np.int32]]":
    """States [n, (A + 1) * Ht], mapped, and token ids [n] of a row's file.

    Raises:
        SourceFailed: it is not a row of this spool.
    """
    header = read_safetensors_header(path)
    states, ids = header.tensors.get("states"), header.tensors.get("token_ids")
    width = (len(spool.boundaries) + 1) * spool.hidden_size
    if (
        states is None
        or ids is None
        or states.begin is None
        or ids.begin is None
        or _NAMES.get(states.dtype) != spool.dtype
        or states.shape[1:] != (width,)
        or ids.dtype != "I32"
        or ids.shape != states.shape[:1]
    ):
        raise _row_failed(spool, path.stem, "its file does not hold what the server announced")
    values = np.memmap(path, NUMPY_DTYPES[spool.dtype], "r", states.begin, tuple(states.shape))
    return values, np.fromfile(path, "<i4", ids.shape[0], offset=ids.begin)


def _row_failed(spool: Spool, name: str, why: str) -> SourceFailed:
    return SourceFailed(
        f"{spool.source} handed over no row {name}",
        str(spool.folder),
        why,
        "see the server's log for lines that begin with eyas-capture; run the same command again to continue",
    )
