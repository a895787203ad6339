"""The writer process beside a capturing server: every row once in the store, whatever is killed or full."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine_site import load
from eyas.contract.engines.capturing import SHARED_SITE
from eyas.contract.spec.target_spec import read_target
from eyas.extract.drain import move_rows
from eyas.extract.plan import about_of_target
from eyas.extract.spool import Spool, open_spool
from eyas.serve.launch.draining import draining
from eyas.store import StoreReader, StoreWriter, row_key
from states_target import saved_target

ENGINE_SIDE = load(SHARED_SITE, "eyas_spool")
READY = {"boundaries": [1, 2, 4], "last": "post-norm", "dtype": "float32", "limit": 1 << 20, "source": "sglang==0.5.23"}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_target(tmp_path_factory.mktemp("target"))


def engine(folder: Path) -> Any:
    """What runs in the engine: announces, and hands rows over."""
    folder.mkdir()
    made = ENGINE_SIDE.Spool(str(folder), READY["limit"], {"last": "post-norm"})
    made.announce({**READY, "hidden_size": 32, "context_length": 256})
    return made


def row(number: int, length: int = 6) -> tuple[list[torch.Tensor], torch.Tensor]:
    ids = torch.randint(3, 64, (length,), generator=torch.Generator().manual_seed(number))
    return [torch.full((length, 32), float(number))] * 4, ids


def hand_over(spool: Any, numbers: range, prefix: str = "s-") -> None:
    for number in numbers:
        parts, ids = row(number)
        spool.put([ENGINE_SIDE.Piece(f"{prefix}{number:04d}", len(ids), 0, 0, len(ids))], parts, ids)


def until(is_so: Callable[[], bool], timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.01)


def require_rows(store: Path, numbers: range) -> None:
    reader = StoreReader.open(store)
    assert len(reader) == len(numbers)
    for number in numbers:
        _, ids = row(number)
        at = reader.find(row_key(ids.numpy().astype(np.int32)))
        assert at is not None
        assert (reader.row(at).states == number).all()


def started(spool: Path, store: Path, target: Path, most_bytes: int | None = None) -> "subprocess.Popen[bytes]":
    def limit() -> None:
        if most_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    words = [sys.executable, "-m", "eyas.extract.drain", str(spool), str(store), str(target)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=limit)


def ended(process: "subprocess.Popen[bytes]") -> int:
    assert process.stdin is not None
    process.stdin.close()
    return process.wait(30)


def writer_for(spool: Spool, store: Path, target: Path) -> StoreWriter:
    facts: Any = {name: getattr(spool, name) for name in ("boundaries", "last", "dtype", "source")}
    return StoreWriter.open(store, about_of_target(read_target(target), target, **facts))


def test_rows_move_into_the_store_and_those_of_a_client_stay(tmp_path: Path, target: Path):
    made = engine(tmp_path / "spool")
    hand_over(made, range(5))
    hand_over(made, range(5, 7), prefix="h-")
    until(lambda: len(list((tmp_path / "spool").glob("*.row"))) == 7)
    spool = open_spool(tmp_path / "spool")

    with writer_for(spool, tmp_path / "store", target) as writer:
        assert move_rows(spool, writer) == 5

    require_rows(tmp_path / "store", range(5))
    assert sorted(path.name for path in spool.folder.glob("*.row")) == ["h-0005.row", "h-0006.row"]


def test_a_row_that_was_stored_and_not_removed_is_stored_once(tmp_path: Path, target: Path, monkeypatch):
    made = engine(tmp_path / "spool")
    hand_over(made, range(3))
    until(lambda: len(list((tmp_path / "spool").glob("*.row"))) == 3)
    spool = open_spool(tmp_path / "spool")
    with monkeypatch.context() as patched, writer_for(spool, tmp_path / "store", target) as writer:
        patched.setattr(Path, "unlink", lambda path: None)  # as if killed before it
        move_rows(spool, writer)

    with writer_for(spool, tmp_path / "store", target) as writer:
        move_rows(spool, writer)

    require_rows(tmp_path / "store", range(3))
    assert not list(spool.folder.glob("*.row"))


def test_a_store_that_is_full_leaves_the_rows_where_they_are_and_the_next_writer_takes_them(tmp_path, target):
    made = engine(tmp_path / "spool")
    hand_over(made, range(20))
    until(lambda: len(list((tmp_path / "spool").glob("*.row"))) == 20)

    process = started(tmp_path / "spool", tmp_path / "store", target, most_bytes=24_000)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 3
    assert b"error[write-failed]" in told
    assert 0 < len(list((tmp_path / "spool").glob("*.row"))) < 20

    assert ended(started(tmp_path / "spool", tmp_path / "store", target)) == 0
    require_rows(tmp_path / "store", range(20))


@pytest.mark.soak
def test_a_writer_killed_at_any_moment_loses_no_row_and_doubles_none(tmp_path: Path, target: Path):
    made, draw, said = engine(tmp_path / "spool"), random.Random(0), []
    spool, store = tmp_path / "spool", tmp_path / "store"
    for round_ in range(25):
        process = started(spool, store, target)
        hand_over(made, range(20 * round_, 20 * round_ + 20))
        time.sleep(draw.uniform(0.2, 1.2))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        said.append(len(list(spool.glob("*.row"))))
    assert ended(started(spool, store, target)) == 0
    require_rows(store, range(500))
    assert any(said), "every kill came after the work"


def test_serve_starts_a_dead_writer_again_and_says_so(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("eyas.serve.launch.draining._PAUSE_S", 0.1)
    made, said = engine(tmp_path / "spool"), list[str]()
    (tmp_path / "store").write_text("not a folder")

    with draining(str(tmp_path / "spool"), tmp_path / "store", target, said.append):
        hand_over(made, range(4))
        until(lambda: bool(said))
        (tmp_path / "store").unlink()
        until(lambda: not list((tmp_path / "spool").glob("*.row")))

    assert "the writer of" in said[0]
    assert "rows wait" in said[0]
    require_rows(tmp_path / "store", range(4))
