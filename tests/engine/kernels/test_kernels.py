"""Each Triton kernel, in each way, computes what its plain twin computes. Runs in Triton's interpreter, in a process of
its own: the interpreter is chosen when Triton is imported."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed (it comes with CUDA builds of torch)")


def interpreted(script: str, *arguments: str) -> dict[str, Any]:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


@needs_triton
@pytest.mark.parametrize(("way", "num_rows"), [("FMA", 1), ("FMA", 3), ("MMA", 3), ("PIPE", 3), ("WALK", 1)])
def test_a_kernel_computes_what_its_plain_twin_computes(way: str, num_rows: int):
    errors = interpreted("interpreted.py", way, str(num_rows))

    assert {"linear + residual", "gate_up", "tokens", "two inputs", "bias and head norms", "attend"} <= set(errors)
    assert max(errors.values()) < 1e-3, errors
    assert errors["tokens"] == 0


@needs_triton
def test_rounds_of_changing_depth_are_those_of_the_plain_twin_also_when_the_draft_catches_up():
    played = interpreted("interpreted_rounds.py")

    assert played["kernels"] == played["twin"]
    assert played["twin"]["drafted"][:6] == [2, 0, 0, 0, 0, 2]
    assert played["twin"]["accepted"][5] > 0, "nothing is accepted after the draft caught up"
    assert max(played["twin"]["accepted"]) == 2, "no draft is accepted to the full depth"


@needs_triton
def test_compiling_ahead_launches_nothing_and_leaves_the_launcher_launching():
    assert interpreted("launched.py") == {"ahead": [0] * 4, "after": [2] * 4, "after a failure": [3] * 4}
