"""The kernels of a batched pass compute what their eager twins compute.

Runs in Triton's interpreter, in a process of its own: the interpreter is chosen when Triton is imported.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed (it comes with CUDA builds of torch)"
)


@needs_triton
def test_kernels_compute_what_their_eager_twins_compute():
    here = Path(__file__)
    paths = os.pathsep.join([str(here.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [sys.executable, str(here.with_name("batch_interpreted.py"))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]

    errors: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    assert {name: error for name, error in errors.items() if error > 1e-4} == {}
    assert set(errors) == {"logits", "cache", "aux", "pieces", "drawn", "drawn among ties", "drawn in bf16"}
