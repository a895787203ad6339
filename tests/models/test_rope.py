import pytest

from eyas.contract.spec.draft_spec import Rope
from eyas.models.rope import RopeUnsupported, inverse_frequencies

LINEAR = {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    "rope",
    [
        Rope(theta=0.0),
        Rope(theta=-1.0),
        Rope(theta=float("nan")),
        Rope(theta=1e4, partial_rotary_factor=-1.0),
        Rope(theta=1e4, partial_rotary_factor=3.0),
        Rope(theta=1e4, partial_rotary_factor=0.0),
        Rope(theta=1e4, scaling={**LINEAR, "factor": "x"}),
        Rope(theta=1e4, scaling={**LINEAR, "factor": 0}),
        Rope(theta=1e4, scaling={**LINEAR, "factor": None}),
        Rope(theta=1e4, scaling={"rope_type": "llama3"}),
        Rope(theta=1e4, scaling={"rope_type": ["linear"], "factor": 2}),
        Rope(theta=1e4, scaling={"rope_type": "longrope", "factor": 2, "short_factor": "x", "long_factor": [1]}),
        Rope(theta=1e4, scaling={"rope_type": "nope", "factor": 2}),
    ],
)
def test_rope_fields_that_nothing_can_be_computed_with_are_named(rope: Rope):
    with pytest.raises(RopeUnsupported, match="cannot be computed"):
        inverse_frequencies(rope, 8, 128)


def test_healthy_rope_is_computed():
    for rope in (Rope(theta=1e4), Rope(theta=1e4, scaling=LINEAR), Rope(theta=1e4, partial_rotary_factor=0.5)):
        frequencies, scale = inverse_frequencies(rope, 8, 128)
        assert (len(frequencies), scale) == (4 * rope.partial_rotary_factor, 1.0)
