"""DeepSeek-V3 and Kimi-K2.5 as they are published: config keys, names, INT4 experts in a wrapper of code not run."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from eyas.contract.spec.target_spec import read_target
from eyas.models.placement import place
from eyas.models.target import Target
from eyas.models.target.frozen_parts import FrozenParts
from published_targets import SMALL, save_deepseek_v3, save_kimi_k25

CPU = place("float32", "cpu")


def unpacked(words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    nibbles = (words.to(torch.int64)[..., None] >> (4 * torch.arange(8))) & 15
    return (nibbles - 8).flatten(1).float() * scales.float().repeat_interleave(32, 1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("kimi")
    return save_kimi_k25(root / "int4", **SMALL), save_kimi_k25(root / "bf16", packed=False, **SMALL)


def test_the_packed_experts_are_those_of_the_twin(folders):
    packed, twin = (load_file(folder / "model.safetensors") for folder in folders)
    experts = [name for name in twin if ".mlp.experts." in name]

    assert len(experts) == 5 * 4 * 3
    for name in experts:
        stem = name.removesuffix(".weight")
        shape = packed[f"{stem}.weight_shape"].tolist()
        assert shape == list(twin[name].shape)
        assert torch.equal(
            unpacked(packed[f"{stem}.weight_packed"], packed[f"{stem}.weight_scale"]), twin[name].float()
        )


def test_what_training_needs_of_an_int4_checkpoint_is_read_by_name(folders):
    packed, twin = (FrozenParts.load(folder, CPU) for folder in folders)
    live = Target.load(folders[1], CPU)

    assert (packed.vocab_size, packed.hidden_size, packed.num_layers) == (512, 32, 6)
    for one, other in ((packed, twin), (packed, live.frozen)):
        assert torch.equal(one.embedding, other.embedding)
        assert torch.equal(one.head, other.head)
        states = torch.randn(2, 3, 32)
        assert torch.allclose(one.final_norm(states), other.final_norm(states), atol=1e-6)


def test_the_config_is_read_through_the_wrapper(folders):
    spec = read_target(folders[0])

    assert (spec.model_type, spec.text_model_type, spec.text_path) == ("kimi_k25", "kimi_k2", ("text_config",))
    assert (spec.quantization, spec.is_head_quantized) == ("compressed-tensors", False)
    assert (spec.hidden_size, spec.num_layers, spec.vocab_size) == (32, 6, 512)


def test_deepseek_v3_as_published_is_loaded(tmp_path: Path):
    target = Target.load(save_deepseek_v3(tmp_path, **SMALL), CPU)
    states = target.forward(torch.arange(40)[None], aux_boundaries=[1, 3, 5])

    low, middle, high = states.aux.split(32, -1)
    assert (low - middle).norm() > 0.1 * low.norm()
    assert (middle - high).norm() > 0.1 * middle.norm()


def test_rounding_does_not_choose_other_experts(tmp_path: Path):
    """Else no engine could be compared with transformers: with a random routing a third of all states differ."""
    folder, ids = save_deepseek_v3(tmp_path), torch.arange(200)[None]
    exact, rounded = (
        Target.load(folder, place(dtype, "cpu")).forward(ids, [3, 6]) for dtype in ("float32", "bfloat16")
    )

    for want, found in ((exact.aux, rounded.aux), (exact.last, rounded.last)):
        assert (want - found.float()).norm() < 0.03 * want.norm()
