"""Quantised drafts as plain weights: exactly the stored values times their scales, whatever the scale covers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from eyas.models.dequantise import DraftPackingUnknown, dequantise

ROWS, COLUMNS = 6, 8
SCALES = {
    "tensor": (1,),
    "row": (ROWS,),
    "row, a column of them": (ROWS, 1),
    "group": (ROWS, 4),
    "block": (2, 3),
}


def integers(seed: int, most: int, *shape: int) -> Tensor:
    return torch.randint(-most, most, shape, generator=torch.Generator().manual_seed(seed))


def spread(scale: Tensor, kind: str) -> Tensor:
    """The scale of each value, by its place."""
    found = torch.empty(ROWS, COLUMNS)
    for i in range(ROWS):
        for j in range(COLUMNS):
            place = {"tensor": (0,), "row": (i,), "row, a column of them": (i, 0), "group": (i, j // 2)}
            found[i, j] = scale[place.get(kind, (i // 3, j // 3))]
    return found


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
@given(seed=st.integers(0, 999))
def test_values_times_scales(kind, dtype, seed):
    values = integers(seed, 8, ROWS, COLUMNS)
    scale = torch.rand(SCALES[kind], generator=torch.Generator().manual_seed(seed)) + 0.5
    name = "weight_scale_inv" if kind == "block" else "weight_scale"
    stored = {"fc.weight": values.to(dtype), f"fc.{name}": scale, "fc.input_scale": torch.ones(1)}
    plain, unscaled = dequantise(stored, {"weight_block_size": [3, 3]}, "here")

    assert plain.keys() == unscaled.keys() == {"fc.weight"}
    assert torch.equal(unscaled["fc.weight"], values.float())
    assert torch.equal(plain["fc.weight"], values.float() * spread(scale, kind))


@pytest.mark.parametrize("bits", [4, 8])
@given(seed=st.integers(0, 999), columns=st.sampled_from([8, 16, 24]))
def test_packed_integers(bits, seed, columns):
    values = integers(seed, 1 << (bits - 1), ROWS, columns)
    per_word = 32 // bits
    codes = (values + (1 << (bits - 1))).reshape(ROWS, -1, per_word)
    words = sum(codes[..., i] << (bits * i) for i in range(per_word))
    stored = {
        "fc.weight_packed": torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32),
        "fc.weight_shape": torch.tensor([ROWS, columns]),
        "fc.weight_scale": torch.full((ROWS, 1), 0.5),
    }
    plain, _ = dequantise(stored, None, "here")

    assert torch.equal(plain["fc.weight"], values * 0.5)


def test_zero_points_are_taken_off_first():
    values = integers(3, 8, ROWS, COLUMNS)
    zero = torch.full((ROWS, 1), 2, dtype=torch.int8)
    stored = {
        "fc.weight": values.to(torch.int8),
        "fc.weight_scale": torch.full((1,), 0.25),
        "fc.weight_zero_point": zero,
    }

    assert torch.equal(dequantise(stored, None, "here")[0]["fc.weight"], (values - 2) * 0.25)


def test_plain_drafts_and_scales_of_activations_stay_as_they_are():
    weight = torch.ones(2, 2)
    plain, unscaled = dequantise(
        {"fc.weight": weight, "layers.0.self_attn.k_proj.k_scale": torch.ones(1)}, None, "here"
    )

    assert (list(plain), plain["fc.weight"] is weight, unscaled) == (["fc.weight"], True, {})


@pytest.mark.parametrize(
    "stored",
    [
        {"fc.qweight": torch.ones(2, 2, dtype=torch.int32), "fc.scales": torch.ones(2)},
        {"fc.weight": torch.ones(4, 4, dtype=torch.int8), "fc.weight_scale": torch.ones(3)},
        {"fc.weight": torch.ones(4, 4), "fc.weight_scale": torch.ones(1)},
        {"fc.weight": torch.ones(4, 2, dtype=torch.uint8), "fc.weight_scale_2": torch.ones(1)},
        {"fc.weight_packed": torch.ones(2, 2, dtype=torch.int32), "fc.weight_scale": torch.ones(2)},
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_name(stored):
    with pytest.raises(DraftPackingUnknown, match="quantised fc"):
        dequantise(stored, None, "here")
