"""A spread target computes what the whole one does; its layers are where they should be."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from eyas.models.target import Target
from eyas.models.target.spread import load_spread, place_layers, spread
from tiny_target import tiny_target

CPU = torch.device("cpu")
A, B = torch.device("cuda", 0), torch.device("cuda", 1)


def test_layers_that_fit_are_divided_evenly():
    places = place_layers([10] * 8, [A, B], [100, 100])
    assert [place.device for place in places] == [A] * 4 + [B] * 4
    assert not any(place.is_offloaded for place in places)


def test_what_does_not_fit_stays_in_the_host_and_leaves_room_for_two_turns():
    places = place_layers([10] * 10, [A], [70])
    assert sum(place.is_offloaded for place in places) == 5  # 50 resident and 20 for two turns
    offloaded = [number for number, place in enumerate(places) if place.is_offloaded]
    assert max(b - a for a, b in pairwise(offloaded)) == 2, "spread, so that copies overlap"


@pytest.mark.parametrize("sizes", [[10] * 3, [100, 10, 10, 10], [1]])
@pytest.mark.parametrize("room", [0, 5, 25, 10_000])
def test_every_layer_has_a_place_and_the_resident_ones_fit(sizes: list[int], room: int):
    places = place_layers(sizes, [A, B], [room, room])
    assert len(places) == len(sizes)
    for device in (A, B):
        resident = [s for s, p in zip(sizes, places, strict=True) if p.device == device and not p.is_offloaded]
        assert sum(resident) <= room


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "deepseek_v3", "granite"])
@pytest.mark.parametrize("share", [0.0, 0.6, 2.0])
def test_a_spread_target_gives_the_states_of_the_whole_one(kind: str, share: float):
    model = tiny_target(kind, num_hidden_layers=6)
    target, ids = Target(model), torch.arange(3, 33).reshape(2, 15)
    wanted = target.forward(ids, [0, 1, 3, 6])
    size = sum(parameter.nbytes for parameter in model.parameters())

    places = spread(target, [CPU], [int(share * size)])

    assert sum(place.is_offloaded for place in places) == {0.0: 6, 2.0: 0}.get(share, len(places) // 2) or share == 0.6
    for _ in range(2):  # the second pass begins with what the first one fetched
        found = target.forward(ids, [0, 1, 3, 6])
        assert torch.equal(found.aux, wanted.aux)
        assert torch.equal(found.last, wanted.last)
        assert torch.equal(target.logits(found.last), target.logits(wanted.last))


def test_a_folder_is_loaded_spread(tmp_path: Path):
    model = tiny_target("llama")
    model.save_pretrained(tmp_path)
    wanted = Target(model).forward(torch.tensor([[5, 6, 7]]), [2])
    target, places = load_spread(tmp_path, torch.float32, [CPU], [0])
    assert all(place.is_offloaded for place in places)
    found = target.forward(torch.tensor([[5, 6, 7]]), [2])
    torch.testing.assert_close(found.aux, wanted.aux)


@pytest.mark.gpu
def test_a_target_over_a_gpu_and_the_host_gives_the_states_of_the_whole_one():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    devices = [torch.device("cuda", i) for i in range(min(2, torch.cuda.device_count()))]
    model = tiny_target("llama", num_hidden_layers=8)
    ids = torch.arange(3, 33).reshape(2, 15)
    wanted = Target(model).forward(ids, [0, 1, 4, 8])
    size = sum(parameter.nbytes for parameter in model.parameters())
    target = Target(model)
    places = spread(target, devices, [int(0.4 * size)] * len(devices))
    assert any(place.is_offloaded for place in places) or len(devices) > 1
    for _ in range(3):
        found = target.forward(ids.to(devices[0]), [0, 1, 4, 8])
        torch.testing.assert_close(found.aux.cpu(), wanted.aux, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(found.last.cpu(), wanted.last, rtol=1e-3, atol=1e-3)
