"""The Triton kernels of captured rounds compute what their plain twins compute, each in each of its ways."""

from pathlib import Path
from typing import Any

import pytest

from triton_interpreter import interpreted, needs_triton

pytestmark = needs_triton


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """All that is computed in the interpreter, in one process."""
    return interpreted(Path(__file__).with_name("interpreted.py"))


@pytest.mark.parametrize(("way", "num_rows"), [("FMA", 1), ("FMA", 3), ("MMA", 3), ("PIPE", 3), ("WALK", 1)])
def test_a_kernel_computes_what_its_plain_twin_computes(found, way: str, num_rows: int):
    errors = found["errors"][f"{way} {num_rows}"]

    assert {"linear + residual", "gate_up", "tokens", "two inputs", "bias and head norms", "attend"} <= set(errors)
    assert max(errors.values()) < 1e-3, errors
    assert errors["tokens"] == 0


def test_rounds_of_changing_depth_are_those_of_the_plain_twin_also_when_the_draft_catches_up(found):
    played = found["rounds"]

    assert played["kernels"] == played["reference"]
    assert played["reference"]["drafted"][:6] == [2, 0, 0, 0, 0, 2]
    assert played["reference"]["accepted"][5] > 0, "nothing is accepted after the draft caught up"
    assert max(played["reference"]["accepted"]) == 2, "no draft is accepted to the full depth"


def test_compiling_ahead_launches_nothing_and_leaves_the_launcher_launching(found):
    assert found["launched"] == {"ahead": [0] * 4, "after": [2] * 4, "after a failure": [3] * 4}
