"""Each Triton kernel of training computes what its plain twin computes. Runs in Triton's interpreter, in a process of
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


@needs_triton
def test_every_kernel_computes_what_its_plain_twin_computes():
    script = Path(__file__).with_name("interpreted.py")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    errors: dict[str, float] = json.loads(done.stdout.splitlines()[-1])

    assert {"norm", "swiglu", "rope", "merge", "teacher", "kl", "ce", "tv", "lk"} < set(errors)
    assert max(errors.values()) < 1e-4, errors
    for name in ("argmax", "argmax draft", "kl drafted"):
        assert errors[name] == 0
