"""The engine's side of the hand-over: rows as files, waits instead of losses, and a reason for what cannot come."""

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from engine_site import load
from eyas.contract.engines.capturing import SHARED_SITE

spool_module = load(SHARED_SITE, "eyas_spool")
Piece = spool_module.Piece


def spool_in(folder: Path, limit: int = 1 << 20) -> Any:
    folder.mkdir(exist_ok=True)
    return spool_module.Spool(str(folder), limit, {"last": "post-norm"})


def parts(num: int, seed: int = 0) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return [torch.randn(num, 4, generator=made, dtype=torch.float32).bfloat16() for _ in range(3)]


def until(is_so: Callable[[], bool], timeout_s: float = 5.0) -> None:
    end = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.002)


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    chunk=st.integers(1, 32),
    slab=st.sampled_from([1, 3, 2048]),
)
@settings(max_examples=25, deadline=None)
def test_any_cut_into_passes_gives_whole_rows(tmp_path_factory, lengths, chunk, slab):
    folder = tmp_path_factory.mktemp("spool")
    spool, spool_module._SLAB = spool_in(folder), slab
    rows = [(parts(n, seed), torch.arange(n) + 100 * seed) for seed, n in enumerate(lengths)]
    left = [[(at, min(chunk, n - at)) for at in range(0, n, chunk)] for n in lengths]
    while any(left):  # the next piece of two rows a pass, after a stranger's two tokens
        batch = [(number, *left[number].pop(0)) for number in [n for n, pieces in enumerate(left) if pieces][:2]]
        pieces, start = [], 2
        for number, at, num in batch:
            pieces.append(Piece(f"r{number}", lengths[number], at, start, num))
            start += num
        stranger = [torch.full((2, 4), 9.0, dtype=torch.bfloat16)]
        of_pass = [torch.cat(stranger + [rows[r][0][p][a : a + n] for r, a, n in batch]) for p in range(3)]
        ids = torch.cat([torch.tensor([7, 7]), *(rows[r][1][a : a + n] for r, a, n in batch)])
        spool.put(pieces, of_pass, ids)

    until(lambda: len(list(folder.glob("*.row"))) == len(lengths))
    for number, (states, ids) in enumerate(rows):
        found = load_file(folder / f"r{number}.row")
        assert torch.equal(found["states"], torch.cat(states, dim=1))
        assert found["token_ids"].tolist() == ids.tolist()


def test_a_new_row_waits_until_one_has_been_fetched(tmp_path: Path):
    spool = spool_in(tmp_path, limit=4 * 10 * 24)  # four rows of 10 tokens
    for number in range(4):
        spool.put([Piece(f"r{number}", 10, 0, 0, 10)], parts(10), torch.arange(10))
    until(lambda: len(list(tmp_path.glob("*.row"))) == 4)
    fifth = threading.Thread(target=lambda: spool.put([Piece("r4", 10, 0, 0, 10)], parts(10), torch.arange(10)))
    fifth.start()
    time.sleep(0.1)
    assert fifth.is_alive()

    (tmp_path / "r2.row").unlink()

    fifth.join(5)
    until((tmp_path / "r4.row").exists)
    assert len(list(tmp_path.glob("*.row"))) == 4


def test_a_row_under_way_is_not_held_by_a_full_folder(tmp_path: Path):
    spool = spool_in(tmp_path, limit=2 * 10 * 24)
    spool.put([Piece("long", 10, 0, 0, 4)], parts(4), torch.arange(4))
    spool.put([Piece("other", 10, 0, 0, 10)], parts(10), torch.arange(10))

    spool.put([Piece("long", 10, 4, 0, 6)], parts(6), torch.arange(6))

    until((tmp_path / "long.row").exists)


def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd):
    spool, real, full = spool_in(tmp_path), os.pwrite, threading.Event()
    full.set()

    def pwrite(fd: int, data: Any, at: int) -> int:
        if full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[: max(1, len(data) // 2)], at)  # and writes only a part

    monkeypatch.setattr(os, "pwrite", pwrite)
    states = parts(10)
    spool.put([Piece("r", 10, 0, 0, 10)], states, torch.arange(10))
    time.sleep(0.1)
    assert not (tmp_path / "r.row").exists()

    full.clear()

    until((tmp_path / "r.row").exists)
    assert torch.equal(load_file(tmp_path / "r.row")["states"], torch.cat(states, dim=1))
    assert "has no room" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([Piece("r", 10, 4, 0, 6)], "came from a cache"),
        ([Piece("r", 10, 0, 0, 4), Piece("r", 10, 6, 0, 4)], "tokens 6 to 10 came where 4 of 10 were expected"),
        ([Piece("r", 5, 0, 0, 3), Piece("r", 5, 3, 0, 4)], "tokens 3 to 7 came where 3 of 5 were expected"),
        ([Piece("r", 5, 0, 0, 6)], "6 tokens came for a row of 5"),
        ([Piece("r", 100_000, 0, 0, 6)], "more than half of the 1048576 for waiting rows"),
    ],
)
def test_a_row_that_cannot_come_says_why_and_leaves_nothing(tmp_path: Path, pieces, why):
    spool = spool_in(tmp_path)
    for piece in pieces:
        spool.put([piece], parts(piece.num), torch.arange(piece.num))

    until((tmp_path / "r.failed").exists)
    assert why in (tmp_path / "r.failed").read_text()
    until(lambda: [path.name for path in tmp_path.iterdir()] == ["r.failed"])


def test_a_row_that_the_engine_begins_again_is_the_second_one(tmp_path: Path):
    spool, second = spool_in(tmp_path), parts(8, 2)
    spool.put([Piece("r", 8, 0, 0, 5)], parts(5, 1), torch.arange(5))

    spool.put([Piece("r", 8, 0, 0, 8)], second, torch.arange(8))
    until((tmp_path / "r.row").exists)
    spool.put([Piece("r", 8, 0, 0, 8)], parts(8, 3), torch.arange(8))  # and once more after it was complete

    time.sleep(0.05)
    assert torch.equal(load_file(tmp_path / "r.row")["states"], torch.cat(second, dim=1))


def test_a_row_given_up_half_way_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spool_module, "_ABORTED_AFTER_S", 0.05)
    spool = spool_in(tmp_path, limit=2 * 10 * 24)
    for name in ("a", "b"):
        spool.put([Piece(name, 10, 0, 0, 4)], parts(4), torch.arange(4))

    spool.put([Piece("c", 10, 0, 0, 10)], parts(10), torch.arange(10))

    until((tmp_path / "c.row").exists)
    assert "the request was given up" in (tmp_path / "a.failed").read_text()
    until(lambda: not list(tmp_path.glob("*.part")))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_cannot_write_stops_the_engine_instead_of_losing_rows(tmp_path: Path):
    spool = spool_in(tmp_path)
    (tmp_path / "r.part").mkdir()  # opening it for writing fails
    spool.put([Piece("r", 4, 0, 0, 4)], parts(4), torch.arange(4))
    until(lambda: spool._fault is not None)

    with pytest.raises(RuntimeError, match="rows cannot be written"):
        spool.put([Piece("s", 4, 0, 0, 4)], parts(4), torch.arange(4))


@pytest.mark.parametrize(
    ("request_id", "found"),
    [
        ("eyas.h-0a_B.12", ("h-0a_B", 12)),
        ("eyas.../../etc.12", None),
        ("eyas.a/b.12", None),
        ("eyas..12", None),
        ("eyas.a.0", None),
        ("eyas.a.-1", None),
        ("eyas.a.²", None),
        ("eyas." + "a" * 101 + ".1", None),
        ("cmpl-1234", None),
        (None, None),
    ],
)
def test_only_a_plain_name_with_a_length_is_a_row(request_id, found):
    assert spool_module.row_of(request_id) == found


def test_what_is_announced_is_there_whole(tmp_path: Path):
    spool_in(tmp_path).announce({"boundaries": [1, 2], "dtype": "bfloat16"})

    assert json.loads((tmp_path / "ready.json").read_text()) == {"boundaries": [1, 2], "dtype": "bfloat16"}
