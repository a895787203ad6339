"""Training under SIGKILL; `training_soak.py` says how. Its lives are forks of this process: no import is done twice."""

from argparse import Namespace
from pathlib import Path

import pytest

from training_soak import soak


@pytest.mark.parametrize("kills", [3, pytest.param(24, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_a_training_killed_at_random_moments_ends_with_the_same_curve_and_the_same_weights(kills: int, tmp_path: Path):
    options = Namespace(kills=kills, seed=kills, device="cpu", target=None, rows=None, batch_tokens=150)
    found = soak(options, tmp_path)
    assert found["kills"] == kills
    assert found["is_curve_identical"]
    assert found["are_weights_identical"]
    assert found["leavings"] == []
