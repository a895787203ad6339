"""Scripts in Triton's interpreter, which runs kernels on the CPU; each in a process of its own: Triton decides between
interpreter and compiler when it is imported."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch import Tensor

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def interpreted(script: Path) -> dict[str, Any]:
    """The JSON object in the last line that a script prints."""
    # A script imports from its own folder; from here on it also finds what all tests share.
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def largest_difference(expected: "Tensor", found: "Tensor") -> float:
    """1e9 where something is not a number: a NaN compares as neither larger nor smaller."""
    difference = (expected.double() - found.double()).abs().max()
    return float(difference) if difference.isfinite() else 1e9
