"""Each Triton kernel, in each way, computes what its plain twin computes. Runs in Triton's interpreter, in a process of
its own: the interpreter is chosen when Triton is imported."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed (it comes with CUDA builds of torch)")


def largest_errors(way: str, num_rows: int) -> dict[str, float]:
    script = Path(__file__).with_name("interpreted.py")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), way, str(num_rows)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    errors: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return errors


@needs_triton
@pytest.mark.parametrize(("way", "num_rows"), [("FMA", 1), ("FMA", 3), ("MMA", 3), ("PIPE", 3), ("WALK", 1)])
def test_a_kernel_computes_what_its_plain_twin_computes(way: str, num_rows: int):
    errors = largest_errors(way, num_rows)

    assert set(errors) == {"linear", "linear + residual", "gate_up", "tokens", "query", "cache", "two inputs", "attend"}
    assert max(errors.values()) < 1e-3, errors
    assert errors["tokens"] == 0
