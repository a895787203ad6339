"""A tree's shape is read as it is written, and impossible ones are refused with what is wrong."""

import pytest

from eyas.decode.tree_shape import TreeShape, TreeShapeInvalid


def test_a_shape_is_written_width_depth_nodes():
    shape = TreeShape.parse("4x5x16")

    assert (shape.width, shape.depth, shape.num_nodes) == (4, 5, 16)
    assert str(shape) == "4x5x16"
    assert (shape.num_drafted, shape.num_expanded) == (4 + 4 * 16, 16)


def test_several_shapes_are_separated_by_commas():
    assert [str(shape) for shape in TreeShape.parse_all("4x5x16, 8x6x32")] == ["4x5x16", "8x6x32"]
    assert TreeShape.parse_all(" ") == ()


@pytest.mark.parametrize("text", ["4x5", "4x5x", "axbxc", "4x5x16x2", "-1x5x16", "4x5x1.5", "4x5x99999999999"])
def test_what_is_no_shape_is_refused(text: str):
    with pytest.raises(TreeShapeInvalid, match=r"tree-shape-invalid.*is not a tree's shape"):
        TreeShape.parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0x5x16", "width is 0"),
        ("33x5x16", "width is 33"),
        ("4x33x60", "depth is 33"),
        ("4x5x4", "nodes is 4, wanted 5 .one per depth. - 68"),
        ("2x3x11", "nodes is 11, wanted 3 .one per depth. - 10"),
        ("20x5x256", "- 255"),
    ],
)
def test_a_shape_that_no_tree_has_is_refused(text: str, why: str):
    with pytest.raises(TreeShapeInvalid, match=why):
        TreeShape.parse(text)


def test_a_shape_named_twice_is_refused():
    with pytest.raises(TreeShapeInvalid, match="named twice"):
        TreeShape.parse_all("4x5x16,4x5x16")
