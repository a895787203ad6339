"""`eyas extract` killed at random moments, two at once: at the end each row is there once, and right."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from eyas.extract.tensors import as_tensor
from eyas.models.placement import Placement
from eyas.models.target import Target
from eyas.store import StoreReader, row_key
from eyas.store.verify import verify
from eyas.talk import Silent
from rows_folder import write_rows
from states_target import BOUNDARIES, saved_target
from token_rows import rows_of

ROWS = rows_of(*(10 + i % 40 for i in range(400)))


def _start(target: Path, rows: Path, out: Path) -> subprocess.Popen[bytes]:
    words = ["extract", "--target", target, "--data", rows, "--out", out, "--device", "cpu", "--batch-tokens", 32]
    words += ["--shard-gb", 0.001, "--boundaries", *BOUNDARIES]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "eyas", *map(str, words)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_twenty_kills_and_two_processes_lose_and_repeat_nothing(tmp_path: Path):
    target, rows = saved_target(tmp_path / "target"), write_rows(tmp_path / "rows", ROWS)
    out, draw, held = tmp_path / "store", random.Random(0), 0
    for kill in range(20):
        running = [_start(target, rows, out) for _ in range(1 + kill % 2)]
        # some while it loads, some while it writes
        deadline, more = time.monotonic() + 60, draw.randrange(0, 40)
        while time.monotonic() < deadline and running[0].poll() is None:
            if out.exists() and (out / "manifest.json").exists() and len(StoreReader.open(out)) > held + more:
                break
            time.sleep(0.02)
        for process in running:
            process.kill()
            process.wait()
        if (out / "manifest.json").exists():
            reader = StoreReader.open(out)
            assert len(reader) >= held, "a row that was there is gone"
            held = len(reader)
    running = [_start(target, rows, out) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]

    reader = StoreReader.open(out)
    assert len(reader) == len({row.token_ids for row in ROWS})
    assert verify(out, Silent()).num_faults == 0
    whole = Target.load(target, Placement(torch.float32, torch.device("cpu")))
    for row in ROWS[::7]:
        number = reader.find(row_key(row.token_ids))
        assert number is not None
        states = whole.forward(torch.tensor([row.token_ids]), BOUNDARIES)
        wanted = torch.cat([states.aux, states.last], -1)[0]
        torch.testing.assert_close(as_tensor(reader.row(number).states, "float32"), wanted, rtol=1e-4, atol=1e-4)
