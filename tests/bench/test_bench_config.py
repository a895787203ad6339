"""The depths that `-k` means."""

import pytest

from eyas.bench.bench_config import BenchConfig, BenchConfigInvalid
from eyas.decode.tree_shape import TreeShapeInvalid


@pytest.mark.parametrize(
    ("text", "depths"),
    [("3", (3,)), ("1..7", (1, 2, 3, 4, 5, 6, 7)), ("5,1,3", (1, 3, 5)), ("2, 4..5", (2, 4, 5)), ("3,3", (3,))],
)
def test_numbers_lists_and_ranges(text: str, depths: tuple[int, ...]):
    assert BenchConfig(num_draft_tokens=text).depths == depths


@pytest.mark.parametrize("text", ["", "0", "33", "a", "1..", "..3", "5..2", "-1", "1;2", "1..999999999", "9" * 5000])
def test_anything_else_is_refused(text: str):
    with pytest.raises(BenchConfigInvalid, match="-k is"):
        BenchConfig(num_draft_tokens=text)


@pytest.mark.parametrize(("text", "depths"), [("auto", ()), ("3,auto", (3,)), ("auto, 1..2", (1, 2))])
def test_auto_stands_alone_or_in_a_list(text: str, depths: tuple[int, ...]):
    config = BenchConfig(num_draft_tokens=text)

    assert config.is_adaptive
    assert config.depths == depths
    assert not BenchConfig().is_adaptive


@pytest.mark.parametrize("text", ["auto,auto", "auto,", "auto,x", "auto..3", "Auto"])
def test_auto_is_not_a_number(text: str):
    with pytest.raises(BenchConfigInvalid, match="-k is"):
        BenchConfig(num_draft_tokens=text)


def test_an_adaptive_draft_is_no_deeper_than_rounds_go():
    with pytest.raises(BenchConfigInvalid, match="--auto-most is 8"):
        BenchConfig(auto_most=8)


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(BenchConfigInvalid) as caught:
        BenchConfig(repeats=0, max_new_tokens=1)

    assert "--repeats" in str(caught.value)
    assert "--max-new-tokens" in str(caught.value)


def test_trees_are_named_beside_the_depths():
    config = BenchConfig(tree="3x3x7, 8x6x32")

    assert [str(shape) for shape in config.trees] == ["3x3x7", "8x6x32"]
    assert BenchConfig().trees == ()
    with pytest.raises(TreeShapeInvalid, match="nodes is 2"):
        BenchConfig(tree="3x3x2")
