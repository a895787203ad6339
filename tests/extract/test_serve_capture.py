"""`eyas serve --capture` from the command to the store, with the fake engine (make soak)."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from eyas.store import StoreReader, row_key
from rows_folder import write_rows
from states_target import saved_target
from token_rows import rows_of

FAKE = Path(__file__).parents[1] / "support" / "fake_sglang"
pytestmark = pytest.mark.soak


def test_rows_of_a_client_and_rows_for_the_store_both_arrive_and_nothing_is_left(tmp_path: Path):
    target, port, store = saved_target(tmp_path / "target"), free_port(), tmp_path / "serve_store"
    data = write_rows(tmp_path / "rows", rows_of(*range(5, 25)))
    serve = start(tmp_path, target, port, store)
    try:
        wait(serve, tmp_path, lambda: (Path("/dev/shm") / f"eyas-capture-{port}" / "ready.json").exists() and up(port))

        out = tmp_path / "store"
        words = ["extract", "--target", str(target), "--data", str(data), "--out", str(out), "--device", "cpu"]
        done = eyas([*words, "--from", f"sglang://127.0.0.1:{port}", "--boundaries", "1", "2", "4", "--json"])
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["rows"] == 20

        ids = list(range(3, 40))
        ask(port, {"rid": f"eyas.mine.{len(ids)}", "input_ids": ids, "sampling_params": {"max_new_tokens": 1}})
        ask(port, {"rid": "of-somebody-else", "input_ids": ids[:9], "sampling_params": {"max_new_tokens": 1}})
        spool = Path("/dev/shm") / f"eyas-capture-{port}"
        wait(serve, tmp_path, lambda: (store / "manifest.json").exists() and not list(spool.glob("*.row")))
    finally:
        serve.send_signal(signal.SIGINT)
        code = serve.wait(60)
    assert code == 0, (tmp_path / "err").read_text()
    assert not spool.exists()
    assert len(StoreReader.open(out)) == 20
    kept = StoreReader.open(store)
    assert len(kept) == 1
    assert kept.find(row_key(np.array(ids, np.int32))) == 0
    assert kept.about.boundaries == (1, 2, 4)


def start(folder: Path, target: Path, port: int, store: Path) -> "subprocess.Popen[bytes]":
    words = ["serve", "--engine", "sglang", "--target", str(target), "--capture", str(store), "--boundaries", "1"]
    words += ["2", "4", "--port", str(port), "--pythonpath", str(FAKE), "--runs", str(folder / "runs")]
    return subprocess.Popen(
        [sys.executable, "-m", "eyas", *words],
        stdout=(folder / "out").open("wb"),
        stderr=(folder / "err").open("wb"),
        env={**os.environ},
    )


def eyas(words: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "eyas", *words], capture_output=True, text=True, check=False)


def wait(process: "subprocess.Popen[bytes]", folder: Path, is_so: object) -> None:
    end = time.monotonic() + 120
    while not is_so():  # type: ignore[operator]
        assert process.poll() is None, (folder / "err").read_text() + (folder / "out").read_text()
        assert time.monotonic() < end, (folder / "err").read_text()
        time.sleep(0.2)


def up(port: int) -> bool:
    try:
        return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200)
    except OSError:
        return False


def ask(port: int, body: dict[str, object]) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/generate", json.dumps(body).encode())
    assert urllib.request.urlopen(request, timeout=60).status == 200


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
