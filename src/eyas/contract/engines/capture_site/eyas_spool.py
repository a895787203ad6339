"""Rows of states leave a serving process as files in shared memory, one a row. Imported by the engine, not by eyas.

A pass of the engine hands over pieces of rows. They are copied to pinned memory on the engine's own stream; a thread
waits for the copy and writes it to NAME.part, a safetensors file of the row's final size. When all its tokens are there
the file becomes NAME.row; the client that asked for the row reads and deletes it. When the files hold `limit` bytes the
next new row waits, and with it the engine: nothing is dropped. A row that cannot be captured becomes NAME.failed, which
says why. Needs torch and nothing of eyas.
"""

import errno
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

PREFIX = "eyas."  # of request ids that are rows: eyas.NAME.NUM_TOKENS
_SLAB = 2048  # tokens whose states are laid side by side at once: bounds the extra device memory
_SAY_EVERY_S = 10.0
_ABORTED_AFTER_S = 30.0
_DTYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


class Piece(NamedTuple):
    """`num` tokens of a row of `total`: from `start` in the pass, from `first` in the row."""

    name: str
    total: int
    first: int
    start: int
    num: int


@dataclass
class _Row:
    name: str
    total: int
    num_bytes: int
    about: bytes  # the file up to its data
    expected: int = 0  # position that the engine must bring next
    written: int = 0
    fd: int = -1
    touched: float = field(default_factory=time.monotonic)
    is_complete: bool = False


class _Copied(NamedTuple):
    first: int
    states: list[Tensor]
    ids: Tensor
    event: Any  # after which they are there; None on a CPU


def row_of(request_id: object) -> tuple[str, int] | None:
    """(name, tokens of the row) that a request id asks for; None if it is not a row."""
    if not isinstance(request_id, str) or not request_id.startswith(PREFIX):
        return None
    name, _, length = request_id[len(PREFIX) :].rpartition(".")
    is_plain = 0 < len(name) <= 100 and all(c.isascii() and (c.isalnum() or c in "-_") for c in name)
    is_length = length.isascii() and length.isdigit() and int(length[:10]) > 0
    return (name, int(length[:10])) if is_plain and is_length else None


class Spool:
    """The folder of files, and the thread that writes them.

    Args:
        folder: made by eyas; on a memory file system where there is room.
        limit: bytes that rows may take there before a new one waits. A row of more than half of it is refused.
        about: texts that every file carries (boundaries, kind of the last state, engine).
    """

    def __init__(self, folder: str, limit: int, about: Mapping[str, str]) -> None:
        self._folder, self._limit, self._about = folder, limit, dict(about)
        self._rows: dict[str, _Row] = {}  # of the engine's thread
        self._queue: queue.Queue[tuple[_Row, _Copied | None]] = queue.Queue()
        self._fault: BaseException | None = None
        self._said_at = -_SAY_EVERY_S
        threading.Thread(target=self._write_all, daemon=True, name="eyas-spool").start()

    def put(self, pieces: Sequence[Piece], parts: Sequence[Tensor], ids: Tensor) -> None:
        """Take over what belongs to rows. Waits while the folder is full; raises if the writing thread has failed.

        Args:
            pieces: what the pass holds of rows.
            parts: tensors [T, width] of the pass, in the order of the file's columns.
            ids: token ids [T].
        """
        # Rows that are under way first: they may have to end before a new one finds room.
        for piece in sorted(pieces, key=lambda piece: piece.first == 0):
            row = self._wanted(piece, parts)
            if row is not None:
                self._queue.put((row, _copied(piece, parts, ids)))

    def announce(self, document: Mapping[str, Any]) -> None:
        """Write `ready.json`, by which a client knows what it will get."""
        self._write_text("ready.json", json.dumps(document))

    def fail(self, name: str, why: str) -> None:
        """Say that a row will not come."""
        self._write_text(f"{name}.failed", why)
        print(f"eyas-capture: row {name}: {why}", file=sys.stderr, flush=True)  # noqa: T201 - the engine's log

    def _wanted(self, piece: Piece, parts: Sequence[Tensor]) -> _Row | None:
        row = self._rows.get(piece.name)
        if row is not None and (row.is_complete or piece.first < row.expected) and piece.first:
            return None  # seen already; the engine computes it again for its own reasons
        if row is None or not piece.first:
            return None if row is not None and row.is_complete else self._begun(piece, parts)
        if piece.first > row.expected or piece.first + piece.num > row.total:
            self._give_up(row)
            end, at = piece.first + piece.num, f"{row.expected} of {row.total}"
            self.fail(row.name, f"tokens {piece.first} to {end} came where {at} were expected")
            return None
        row.expected += piece.num
        return row

    def _begun(self, piece: Piece, parts: Sequence[Tensor]) -> _Row | None:
        width, dtype = sum(part.shape[1] for part in parts), parts[0].dtype
        num_bytes = piece.total * width * dtype.itemsize
        if piece.first:
            self.fail(piece.name, f"its first {piece.first} tokens came from a cache: switch the prefix cache off")
        elif piece.num > piece.total:
            self.fail(piece.name, f"{piece.num} tokens came for a row of {piece.total}")
        elif num_bytes > self._limit // 2:
            self.fail(piece.name, f"its {num_bytes} bytes are more than half of the {self._limit} for waiting rows")
        else:
            if piece.name in self._rows:
                self._give_up(self._rows[piece.name])
            self._wait_for_room(num_bytes)
            about = _header(self._about, _DTYPES[dtype], piece.total, width, num_bytes)
            row = _Row(name=piece.name, total=piece.total, num_bytes=num_bytes, about=about, expected=piece.num)
            self._rows[piece.name] = row
            return row
        return None

    def _give_up(self, row: _Row) -> None:
        del self._rows[row.name]
        self._queue.put((row, None))

    def _wait_for_room(self, num_bytes: int) -> None:
        began = time.monotonic()
        while self._held() + num_bytes > self._limit:
            if self._fault is not None:
                raise RuntimeError(f"eyas-capture: rows cannot be written: {self._fault!r}") from self._fault
            if time.monotonic() - began > _SAY_EVERY_S:
                self._say(f"waiting: the rows in {self._folder} have not been read; new requests wait")
            time.sleep(0.002)

    def _held(self) -> int:
        """Bytes of rows that are under way or not fetched yet."""
        if self._fault is not None:
            raise RuntimeError(f"eyas-capture: rows cannot be written: {self._fault!r}") from self._fault
        names, now = set(os.listdir(self._folder)), time.monotonic()
        for row in list(self._rows.values()):
            if row.is_complete and f"{row.name}.row" not in names:
                del self._rows[row.name]
            elif row.written == row.expected < row.total and now - row.touched > _ABORTED_AFTER_S:
                self._give_up(row)
                self.fail(row.name, f"{row.written} of its {row.total} tokens came: the request was given up")
        return sum(row.num_bytes for row in self._rows.values())

    def _write_all(self) -> None:
        try:
            while True:
                row, copied = self._queue.get()
                if copied is not None:
                    self._write_piece(row, copied)
                elif row.fd >= 0:
                    os.close(row.fd)
                    os.unlink(self._path(f"{row.name}.part"))
        except BaseException as error:  # raised where the engine hands over the next row
            self._fault = error
            raise

    def _write_piece(self, row: _Row, copied: _Copied) -> None:
        if copied.event is not None:
            copied.event.synchronize()
        if row.fd < 0:
            row.fd = os.open(self._path(f"{row.name}.part"), os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
            self._write(row.fd, row.about, 0)
        at = len(row.about) + copied.first * (row.num_bytes // row.total)
        for slab in copied.states:
            data = _bytes_of(slab)
            self._write(row.fd, data, at)
            at += len(data)
        self._write(row.fd, _bytes_of(copied.ids), len(row.about) + row.num_bytes + 4 * copied.first)
        row.written, row.touched = row.written + len(copied.ids), time.monotonic()
        if row.written == row.total:
            os.close(row.fd)
            os.rename(self._path(f"{row.name}.part"), self._path(f"{row.name}.row"))
            row.is_complete = True

    def _write(self, fd: int, data: Any, at: int) -> None:
        """All of `data`; waits while the file system is full."""
        view = memoryview(data)
        while view:
            try:
                count = os.pwrite(fd, view, at)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._say(f"waiting: {self._folder} has no room; free some, and it continues")
                time.sleep(0.05)
                continue
            view, at = view[count:], at + count

    def _write_text(self, name: str, text: str) -> None:
        path = self._path(name)
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(path + ".new", path)

    def _say(self, text: str) -> None:
        if time.monotonic() - self._said_at > _SAY_EVERY_S:
            self._said_at = time.monotonic()
            print(f"eyas-capture: {text}", file=sys.stderr, flush=True)  # noqa: T201 - the engine's log

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)


def _header(about: Mapping[str, str], dtype: str, num_tokens: int, width: int, num_bytes: int) -> bytes:
    states = {"dtype": dtype, "shape": [num_tokens, width], "data_offsets": [0, num_bytes]}
    ids = {"dtype": "I32", "shape": [num_tokens], "data_offsets": [num_bytes, num_bytes + 4 * num_tokens]}
    text = json.dumps({"__metadata__": about, "states": states, "token_ids": ids}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _copied(piece: Piece, parts: Sequence[Tensor], ids: Tensor) -> _Copied:
    end = piece.start + piece.num
    slabs = []
    for at in range(piece.start, end, _SLAB):
        stop = min(at + _SLAB, end)
        slabs.append(_to_host(torch.cat([part[at:stop] for part in parts], dim=1)))
    own = _to_host(ids[piece.start : end].to(torch.int32))
    event = None
    if parts[0].is_cuda:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
    return _Copied(piece.first, slabs, own, event)


def _to_host(tensor: Tensor) -> Tensor:
    if not tensor.is_cuda:
        return tensor.clone()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def _bytes_of(tensor: Tensor) -> Any:
    return tensor.reshape(-1).view(torch.uint8).numpy()
