"""Layer ids keep their convention, and every convention is turned to boundaries and back in one file."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.contract.spec.layer_ids import (
    LayerIds,
    LayerIdsUnwritable,
    default_boundaries,
    guess_convention,
    sglang_convention,
)

SOURCE = Path(__file__).resolve().parents[3] / "src" / "eyas"


@pytest.mark.parametrize(
    ("ids", "convention", "boundaries"),
    [
        ((2, 16, 29), "boundary", (2, 16, 29)),
        ((1, 15, 28), "after-layer", (2, 16, 29)),
        ((1, 29, 57), "first-is-1", (2, 30, 58)),
        ((2, 30, 58), "first-is-1", (2, 30, 58)),
        ((24, 30, 36), "last-is-n", (24, 30, 36)),
        ((23, 29, 35), "last-is-n", (24, 30, 36)),
    ],
)
def test_ids_mean_what_their_convention_says(ids: tuple[int, ...], convention: str, boundaries: tuple[int, ...]):
    assert LayerIds(ids=ids, convention=convention).boundaries(num_layers=36) == boundaries  # type: ignore[arg-type]


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=5, unique=True).map(sorted),
    st.sampled_from(["boundary", "after-layer", "first-is-1", "last-is-n"]),
)
def test_boundaries_survive_every_convention_that_can_write_them(boundaries: list[int], convention: str):
    try:
        ids = LayerIds.of_boundaries(boundaries, convention, 40)  # type: ignore[arg-type]
    except LayerIdsUnwritable:
        assert 0 in boundaries or (convention == "first-is-1" and boundaries[0] == 1)
        return
    assert ids.boundaries(40) == tuple(boundaries)


def test_what_a_convention_cannot_say_is_an_error():
    with pytest.raises(LayerIdsUnwritable):
        LayerIds.of_boundaries((0, 5, 9), "after-layer")
    with pytest.raises(LayerIdsUnwritable):
        LayerIds.of_boundaries((1, 5, 9), "first-is-1")


def test_the_default_ids_of_either_convention_are_recognised_by_the_targets_depth():
    assert guess_convention((2, 30, 58), 61, "kimi_k2", is_mla=True)[0] == "boundary"
    assert guess_convention((1, 46, 90), 94, "qwen3_moe", is_mla=False)[0] == "after-layer"
    assert guess_convention((5, 9, 12), 94, "qwen3_moe", is_mla=False)[0] == "after-layer"
    assert guess_convention((5, 9, 12), None, None, is_mla=True)[0] == "first-is-1"
    assert default_boundaries(36) == (2, 18, 33)


def test_targets_that_sglang_reads_otherwise_are_known():
    assert sglang_convention("gpt_oss", is_mla=False) == "last-is-n"
    assert sglang_convention("kimi_k2", is_mla=False) == "first-is-1"
    assert sglang_convention("qwen3", is_mla=False) == "after-layer"
    assert sglang_convention(None, is_mla=True) == "first-is-1"


def test_only_one_file_shifts_layer_ids():
    shift = re.compile(r"(layer_)?ids?\)?\s*[+-]\s*1\b|\+ 1 for \w+ in \w*ids")
    for path in (SOURCE / "contract" / "dialects").glob("*.py"):
        assert not shift.search(path.read_text()), path
