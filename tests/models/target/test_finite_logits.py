"""A target that computes no numbers is refused by every way in which it writes or is replayed."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from eyas.engine.batches.complete_prompts import BatchSettings, complete_prompts
from eyas.engine.batches.generator import Request
from eyas.engine.engine import Limits
from eyas.engine.open_engine import open_engine
from eyas.engine.transformers_target import TransformersTarget
from eyas.models.placement import place
from eyas.models.states import states_of_row
from eyas.models.target import LiveStates, Target, TargetNotFinite, require_finite
from eyas.talk import Silent
from tiny_target import tiny_target

CPU = place("float32", "cpu")


def readable(folder: Path) -> None:
    opened = open_engine(folder, None, CPU, cache=folder, num_threads=1, talk=Silent(), rounds="reference")
    opened.engine.generate([1, 2], Limits(max_new_tokens=2))


def captured(folder: Path) -> None:
    open_engine(folder, None, CPU, cache=folder, num_threads=1, talk=Silent(), rounds="uncaptured")


def batched(folder: Path) -> None:
    requests = [Request(id="a", prompt_ids=(1, 2), max_new_tokens=2)]
    options = {"placement": CPU, "decode": str, "target": "t", "settings": BatchSettings(), "talk": Silent()}
    complete_prompts(folder, requests, folder / "out.jsonl", **options)


def loaded(folder: Path) -> None:
    Target.load(folder, CPU)


@pytest.mark.parametrize("way", [readable, captured, batched, loaded])
def test_a_target_whose_weights_are_no_numbers_is_named(tmp_path: Path, way: Callable[[Path], None]):
    model = tiny_target()
    torch.nn.init.constant_(model.model.layers[1].mlp.down_proj.weight, float("nan"))
    model.save_pretrained(tmp_path)

    with pytest.raises(TargetNotFinite, match=r"float32(.|\n)*weights again") as caught:
        way(tmp_path)
    assert caught.value.where == str(tmp_path)


def test_a_target_that_fails_over_a_text_only_is_refused_there():
    model = tiny_target()
    with torch.no_grad():
        model.model.embed_tokens.weight[9] = float("inf")  # as where a text takes float16 beyond its end
    ids, target = [3, 9], Target(model)

    with pytest.raises(TargetNotFinite):
        states_of_row(LiveStates(target), 0, ids, (1,))
    runner = TransformersTarget(target)
    runner.start(8, ())
    with pytest.raises(TargetNotFinite):
        runner.prefill(ids)


def test_float16_is_told_as_what_it_is_and_a_token_ruled_out_is_no_fault():
    require_finite(torch.tensor([[0.0, float("-inf")]]), "t")
    with pytest.raises(TargetNotFinite, match=r"65504(.|\n)*--dtype"):
        require_finite(torch.tensor([[0.0, float("inf")]], dtype=torch.float16), "t")
