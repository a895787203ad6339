"""Tiles cover their matrices, and the measured choices are the ones that are picked."""

import pytest
import torch

from eyas.engine.captured.tiles import Tile, TileChoice, Way


@pytest.mark.parametrize("num_in", [16, 48, 576, 1536, 1728, 2048])
@pytest.mark.parametrize("num_warps", [1, 2, 4, 8])
def test_two_steps_of_the_matrix_units_cover_every_column(num_in: int, num_warps: int):
    first, rest = Tile(way=Way.MMA, block_out=8, num_warps=num_warps).columns(num_in)

    assert first + rest >= num_in
    assert rest % (16 * num_warps) == 0
    assert first & (first - 1) == 0


@pytest.mark.parametrize(
    ("way", "rows", "padded"), [(Way.FMA, 3, 4), (Way.FMA, 1, 1), (Way.MMA, 3, 16), (Way.PIPE, 3, 8)]
)
def test_rows_are_padded_to_what_the_units_take(way: Way, rows: int, padded: int):
    assert Tile(way=way, block_out=8).padded(rows) == padded


def test_one_row_of_a_wide_matrix_is_walked_and_more_rows_are_piped():
    weight = torch.empty(28672, 4096, dtype=torch.bfloat16, device="meta")
    tiles = TileChoice()

    assert tiles.pick("gate_up", weight, 1).way == Way.WALK
    assert tiles.pick("gate_up", weight, 4).way == Way.PIPE


def test_fp32_stays_on_the_vector_units_whatever_the_size():
    weight = torch.empty(28672, 4096, device="meta")

    assert {TileChoice().pick("gate_up", weight, rows).way for rows in (1, 4, 8)} == {Way.FMA}


def test_pairs_are_never_cut():
    tiles = TileChoice()
    for num_in in (576, 1152, 4096, 8192, 14336):
        for rows in range(1, 9):
            weight = torch.empty(64, num_in, dtype=torch.bfloat16, device="meta")
            assert tiles.pick("qkv", weight, rows).block_out % 2 == 0
            assert tiles.pick("gate_up", weight, rows).block_out % 2 == 0


def test_a_fixed_tile_goes_before_the_rule():
    tile = Tile(way=Way.FMA, block_out=2)
    weight = torch.empty(64, 576, dtype=torch.bfloat16, device="meta")

    tiles = TileChoice(fixed={("linear", 64, 576, 3): tile})

    assert tiles.pick("linear", weight, 3) is tile
    assert tiles.pick("linear", weight, 4) is not tile


@pytest.mark.parametrize(
    ("head_width", "num_rows", "warps"), [(64, 1, 1), (64, 4, 1), (128, 1, 1), (128, 2, 2), (128, 4, 2), (128, 8, 2)]
)
def test_attention_of_wide_heads_and_several_rows_takes_two_warps(head_width: int, num_rows: int, warps: int):
    assert TileChoice().warps_of_attention(head_width, num_rows) == warps


def test_a_fixed_number_of_warps_goes_before_the_rule():
    assert TileChoice(attention_warps=4).warps_of_attention(64, 1) == 4
