"""`pip install eyas` brings no torch: the light packages must not import it, and this test must be able to fail."""

import subprocess
import sys

import pytest

HEAVY = ["torch", "transformers", "numpy", "safetensors", "tokenizers"]
LIGHT = [
    "eyas",
    "eyas.cli.app",
    "eyas.cli.bench",
    "eyas.cli.chat",
    "eyas.cli.check",
    "eyas.cli.convert",
    "eyas.cli.demo",
    "eyas.cli.engines",
    "eyas.cli.eval",
    "eyas.cli.header",
    "eyas.cli.prepare",
    "eyas.cli.report",
    "eyas.cli.serve",
    "eyas.cli.train",
    "eyas.cli.watch",
    "eyas.client",
    "eyas.contract.check",
    "eyas.contract.conversion",
    "eyas.decode.accept_length",
    "eyas.records.atomic",
    "eyas.report.page",
    "eyas.serve.supervisor",
]


def heavy_imports(statement: str) -> str:
    code = f"{statement}\nimport sys\nprint(*sorted({HEAVY!r} & sys.modules.keys()))".replace(
        f"{HEAVY!r} &", f"set({HEAVY!r}) &"
    )
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_the_light_packages_import_no_torch():
    assert heavy_imports("\n".join(f"import {name}" for name in LIGHT)) == ""


def test_this_proof_can_fail():
    pytest.importorskip("numpy")
    assert heavy_imports("import eyas.decode, numpy") == "numpy"
