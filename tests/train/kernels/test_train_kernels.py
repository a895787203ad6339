"""Each Triton kernel of training computes what its plain twin computes. Runs in Triton's interpreter, in a process of
its own: the interpreter is chosen when Triton is imported."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_every_compiled_kernel_computes_what_its_plain_twin_computes_at_real_sizes_too():
    script = Path(__file__).with_name("interpreted.py")
    command = [sys.executable, str(script), "cuda"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for line in done.stdout.splitlines():
        label, dtype, found = line.split(" ", 2)
        errors: dict[str, float] = json.loads(found)
        # Of two logits that are equal in bf16 either is a first choice.
        errors = {k: v for k, v in errors.items() if not (dtype == "torch.bfloat16" and "drafted" in k)}
        assert max(errors.values()) < (1e-3 if dtype == "torch.float32" else 0.03), (label, dtype, errors)
