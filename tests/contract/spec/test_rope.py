"""RoPE is read from either spelling and written in both."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.contract.spec.draft_spec import Rope
from eyas.contract.spec.rope import read_rope, write_rope

YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0}


@pytest.mark.parametrize(
    ("config", "theta", "scaling"),
    [
        ({}, 10000.0, None),
        ({"rope_theta": 5e5}, 5e5, None),
        ({"rope_theta": 5e5, "rope_scaling": None}, 5e5, None),
        (
            {
                "rope_theta": 1e6,
                "rope_scaling": {"type": "yarn", **{k: v for k, v in YARN.items() if k != "rope_type"}},
            },
            1e6,
            YARN,
        ),
        ({"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}, 7.0, None),
        ({"rope_parameters": {"rope_theta": 7.0, **YARN}}, 7.0, YARN),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 8.0}, "sliding_attention": {"rope_theta": 9.0}}},
            8.0,
            None,
        ),
        ({"rope_theta": "x"}, 10000.0, None),
    ],
)
def test_both_spellings_give_the_effective_rope(config: dict[str, Any], theta: float, scaling: dict[str, Any] | None):
    rope = read_rope(config).rope
    assert (rope.theta, rope.scaling) == (theta, scaling)


def test_no_rope_key_is_said():
    assert "10000" in read_rope({}).source


def test_spellings_that_disagree_are_a_conflict():
    assert "theta" in (read_rope({"rope_theta": 1.0, "rope_parameters": {"rope_theta": 2.0}}).conflict or "")
    both = {"rope_theta": 2.0, "rope_scaling": YARN, "rope_parameters": {"rope_theta": 2.0}}
    assert "scaling" in (read_rope(both).conflict or "")


@given(
    st.floats(1.0, 1e8), st.sampled_from([None, YARN, {"rope_type": "linear", "factor": 2.0}]),
    st.sampled_from([1.0, 0.5]),
)  # fmt: skip
def test_what_is_written_reads_back_in_either_spelling_alone(theta: float, scaling: Any, share: float):
    rope = Rope(theta=theta, scaling=scaling, partial_rotary_factor=share)
    written = write_rope(rope)
    old = {key: value for key, value in written.items() if key != "rope_parameters"}
    new = {"rope_parameters": written["rope_parameters"]}
    assert read_rope(written).rope == read_rope(old).rope == read_rope(new).rope == rope
    assert read_rope(written).conflict is None
