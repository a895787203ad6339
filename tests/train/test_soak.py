"""Training under SIGKILL; `training_soak.py` says how."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("training_soak.py")


@pytest.mark.parametrize("kills", [3, pytest.param(24, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_a_training_killed_at_random_moments_ends_with_the_same_curve_and_the_same_weights(kills: int):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--kills", str(kills), "--seed", str(kills)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kills"] == kills
    assert found["is_curve_identical"]
    assert found["are_weights_identical"]
    assert found["leavings"] == []
