"""A dynamic tree keeps the best nodes and all their ancestors; its mask is the ancestor relation."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.decode.tree import ROOT, Child, DraftTree, Offered, TreePool, follow
from eyas.decode.tree_rows import TreeRows, paths_of
from eyas.decode.tree_shape import TreeShape

Offers = Callable[[tuple[int, ...]], list[tuple[int, float]]]


@st.composite
def shapes(draw: st.DrawFn) -> TreeShape:
    width, depth = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    most = width + (depth - 1) * width**2
    return TreeShape(width=width, depth=depth, num_nodes=draw(st.integers(depth, most)))


def offers_of(seed: int, width: int) -> Offers:
    """After each path `width` tokens with log-confidences on a coarse grid: many ties, some of them certain."""

    def offer(path: tuple[int, ...]) -> list[tuple[int, float]]:
        generator = torch.Generator().manual_seed(hash((seed, path)) % 2**31)
        values = torch.randint(0, 5, (width,), generator=generator).sort().values
        return [(token, -float(value) / 2) for token, value in enumerate(values.tolist())]

    return offer


def grown(offer: Offers, shape: TreeShape) -> tuple[TreePool, DraftTree]:
    pool, paths = TreePool(shape), {ROOT: ()}
    frontier = [ROOT]
    while frontier:
        first = len(pool.ids)
        level = {}
        for node in frontier:
            children = [Child(id=t, log_confidence=v, log_priority=v) for t, v in offer(paths[node])]
            level[node] = Offered(children=tuple(children))
        pool.add_level(level)
        for node in range(first, len(pool.ids)):
            paths[node] = (*paths[pool.parents[node]], pool.ids[node])
        frontier = pool.frontier()
    return pool, pool.best()


def paths(tree: DraftTree) -> dict[tuple[int, ...], float]:
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.ids, tree.parents, strict=True):
        found.append((*(found[parent] if parent != ROOT else ()), token))
    assert len(set(found)) == len(found), "a node stands there twice"
    return dict(zip(found, tree.values, strict=True))


def by_definition(offer: Offers, shape: TreeShape) -> dict[tuple[int, ...], float]:
    """EAGLE-2's tree with nothing left out: every level's best nodes expanded, then the best of all."""
    level, drafted = [((), 0.0)], []
    for _ in range(shape.depth):
        children = [((*path, token), value + v) for path, value in level for token, v in offer(path)]
        drafted += children
        best = sorted(range(len(children)), key=lambda i: (-children[i][1], i))[: shape.width]
        level = [children[i] for i in sorted(best)]
    best = sorted(range(len(drafted)), key=lambda i: (-drafted[i][1], i))[: shape.num_nodes]
    return {drafted[i][0]: drafted[i][1] for i in best}


@settings(max_examples=150, deadline=None)
@given(shape=shapes(), seed=st.integers(0, 2**20))
def test_the_tree_is_that_of_the_definition(shape: TreeShape, seed: int):
    offer = offers_of(seed, shape.width)

    _, tree = grown(offer, shape)

    assert paths(tree) == by_definition(offer, shape)


@settings(max_examples=150, deadline=None)
@given(shape=shapes(), seed=st.integers(0, 2**20))
def test_parents_are_kept_stand_before_their_children_and_are_not_worse(shape: TreeShape, seed: int):
    pool, tree = grown(offers_of(seed, shape.width), shape)

    assert len(tree.ids) == min(shape.num_nodes, len(pool.ids))
    for node, parent in enumerate(tree.parents):
        assert parent == ROOT or (0 <= parent < node and tree.values[parent] >= tree.values[node])
    assert sorted(tree.values) == sorted(pool.values)[-len(tree.ids) :], "the N best by value"
    assert all(1 <= depth <= shape.depth for depth in tree.depths)
    assert tree.row_parents[0] == ROOT
    assert list(tree.depths) == sorted(tree.depths), "depth by depth"


@settings(max_examples=50, deadline=None)
@given(depth=st.integers(1, 8), seed=st.integers(0, 2**20))
def test_a_tree_of_width_one_with_a_node_per_depth_is_the_chain(depth: int, seed: int):
    offer = offers_of(seed, 3)

    _, tree = grown(lambda path: offer(path)[:1], TreeShape(width=1, depth=depth, num_nodes=depth))

    assert tree.parents == tuple(range(-1, depth - 1))
    chain: tuple[int, ...] = ()
    for _ in range(depth):
        chain = (*chain, offer(chain)[0][0])
    assert tree.ids == chain


def test_nodes_that_cannot_be_kept_are_not_expanded():
    def offer(path: tuple[int, ...]) -> list[tuple[int, float]]:
        return [(t, math.log(p)) for t, p in enumerate((0.3, 0.2, 0.1) if path else (0.4, 0.35, 0.25))]

    pool, tree = grown(offer, TreeShape(width=3, depth=3, num_nodes=3))

    assert len(pool.ids) == 3 + 6, "the worst node is not expanded, and after 0.4 * 0.3 < 0.25 there is no third depth"
    assert (tree.ids, tree.parents) == ((0, 1, 2), (ROOT, ROOT, ROOT))


def test_a_child_better_than_its_parent_is_a_bug():
    with pytest.raises(AssertionError, match="a parent could be worse"):
        TreePool(TreeShape(width=1, depth=1, num_nodes=1)).add_level(
            {ROOT: Offered(children=(Child(id=0, log_confidence=0.5, log_priority=0.5),))}
        )


def test_what_is_followed_is_the_longest_path_that_is_the_text():
    tree = DraftTree(ids=(5, 6, 7, 7, 8), parents=(-1, -1, 0, 1, 3), values=(0.0,) * 5)

    assert follow(tree, [6, 7, 8, 9]) == (1, 3, 4)
    assert follow(tree, [5, 7, 8]) == (0, 2)
    assert follow(tree, [6, 7]) == (1, 3)
    assert follow(tree, [7]) == ()
    assert follow(tree, []) == ()


@settings(max_examples=100, deadline=None)
@given(shape=shapes(), seed=st.integers(0, 2**20), base=st.integers(0, 6), window=st.none() | st.integers(1, 9))
def test_the_mask_is_the_ancestor_relation(shape: TreeShape, seed: int, base: int, window: int | None):
    _, tree = grown(offers_of(seed, shape.width), shape)
    rows = TreeRows(base=base, paths=tuple(paths_of(tree.row_parents, base)))

    mask = rows.mask(window, torch.device("cpu"))

    depths = [0, *tree.depths]
    assert rows.positions == [base + depth for depth in depths]
    assert mask.shape == (len(depths), base + len(depths))
    for row, depth in enumerate(depths):
        ancestors = {row}
        while tree.row_parents[min(ancestors)] != ROOT:
            ancestors.add(tree.row_parents[min(ancestors)])
        first = 0 if window is None else base + depth - window + 1
        seen = {slot for slot in range(base) if slot >= first}
        seen |= {base + other for other in ancestors if base + depths[other] >= first}
        assert set(mask[row].nonzero()[:, 0].tolist()) == seen


def test_paths_go_on_from_those_before():
    first = paths_of([-1, -1], 7)
    assert first == [(7,), (8,)]
    assert paths_of([1, 0, 2], 9, first) == [(7,), (8,), (8, 9), (7, 10), (8, 9, 11)]
