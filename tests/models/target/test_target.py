import json

import pytest
import torch
from torch import nn

from eyas.contract.spec.target_parts import TargetPartMissing
from eyas.errors import EnvironmentMissing
from eyas.models.placement import PlacementInvalid, place
from eyas.models.target import AuxBoundaryMissing, Target, TargetCacheUnsupported
from eyas.models.target.loading import TargetUnloadable
from tiny_target import CONFIGS, NESTED, tiny_target


def some_ids(length: int = 12) -> torch.Tensor:
    return torch.randint(3, 64, (2, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("kind", [*CONFIGS, *NESTED])
@torch.no_grad()
def test_states_and_logits_are_the_model_s_own_in_every_architecture(kind):
    model = tiny_target(kind)
    target, ids = Target(model), some_ids()
    boundaries = [3, 0, 4, 1]

    states = target.forward(ids, boundaries)

    # transformers 5.24's Llama4ForConditionalGeneration fails without images: ask the text model inside.
    whole = (model.language_model if kind == "llama4" else model)(input_ids=ids, output_hidden_states=True)
    torch.testing.assert_close(target.logits(states.last), whole.logits, atol=1e-5, rtol=1e-5)
    blocks = dict(zip(boundaries, states.aux.chunk(4, -1), strict=True))
    for boundary in (0, 1, 3):
        torch.testing.assert_close(blocks[boundary], whole.hidden_states[boundary], atol=1e-5, rtol=1e-5)
    # The last boundary is before the final norm, unlike transformers' last entry.
    torch.testing.assert_close(target.parts.final_norm(blocks[4]), states.last, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(states.last, whole.hidden_states[-1], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(blocks[4], states.last)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "gpt_oss", "deepseek_v3"])
def test_a_pass_in_pieces_over_a_cache_equals_one_pass(kind):
    target, ids = Target(tiny_target(kind)), some_ids()
    whole = target.forward(ids, [1, 4])
    cache = target.new_cache()

    pieces = [target.forward(ids[:, a:b], [1, 4], cache=cache) for a, b in ((0, 5), (5, 6), (6, 12))]

    torch.testing.assert_close(torch.cat([p.aux for p in pieces], 1), whole.aux, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.cat([p.last for p in pieces], 1), whole.last, atol=1e-5, rtol=1e-5)


def test_no_hook_stays_behind():
    model = tiny_target()
    Target(model).forward(some_ids(), [0, 2])

    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_boundary_beyond_the_target_is_named():
    with pytest.raises(AuxBoundaryMissing) as caught:
        Target(tiny_target()).forward(some_ids(), [1, 5])

    assert str(caught.value).splitlines()[:2] == [
        "error[aux-boundary-missing]: no hidden states for aux boundary 5",
        "  --> LlamaForCausalLM with 4 layers, wanted [1, 5]",
    ]


def test_a_layer_that_gives_no_state_is_named():
    model = tiny_target()
    model.model.layers[1].register_forward_hook(lambda m, a, out: out.unsqueeze(0))
    model.model.layers[2].register_forward_pre_hook(lambda m, args: (args[0].squeeze(0), *args[1:]))

    with pytest.raises(AuxBoundaryMissing, match=r"layer 1 gave \(1, 2, 12, 32\), wanted \(2, 12, 32\)"):
        Target(model).forward(some_ids(), [2])


def test_a_target_with_a_cache_of_its_own_is_named():
    with pytest.raises(TargetCacheUnsupported, match="MiniMax uses cache of its own"):
        target = Target(tiny_target("minimax"))
        target.forward(some_ids(), cache=target.new_cache())


def test_a_missing_part_is_named_with_what_was_found():
    without_norm, without_layers = tiny_target(), tiny_target()
    del without_norm.model.norm
    without_layers.model.layers = without_layers.model.layers[:3]
    without_head = tiny_target()
    without_head.lm_head = nn.Identity()

    with pytest.raises(TargetPartMissing, match="no final norm"):
        Target(without_norm)
    with pytest.raises(TargetPartMissing, match=r"no list of 4 decoder layers .*\n.*\n.*3 x LlamaDecoderLayer"):
        Target(without_layers)
    with pytest.raises(TargetPartMissing, match="no output head"):
        Target(without_head)


def test_a_saved_target_loads_and_anything_else_is_refused_by_name(tmp_path):
    tiny_target().save_pretrained(tmp_path / "target")
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')

    target = Target.load(tmp_path / "target", place("float32", "cpu"))

    assert (target.num_layers, target.hidden_size, target.vocab_size) == (4, 32, 64)
    weights = tmp_path / "target" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(TargetUnloadable, match="SafetensorError"):
        Target.load(tmp_path / "target", place("float32", "cpu"))
    with pytest.raises(TargetUnloadable):
        Target.load(tmp_path, place("float32", "cpu"))


@pytest.mark.parametrize("device", ["foo", "", "meta", "mps", "xla", "cuda:-1", "cpu:x"])
def test_a_device_that_eyas_does_not_run_on_is_refused_before_anything_is_loaded(device):
    with pytest.raises(PlacementInvalid):
        place("float32", device)


@pytest.mark.parametrize("changes", [{"num_attention_heads": 0}, {"hidden_size": "x"}, {"rope_parameters": [1]}])
def test_a_config_that_the_library_stumbles_over_is_refused_by_name(tmp_path, changes):
    tiny_target().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(TargetUnloadable):
        Target.load(tmp_path, place("float32", "cpu"))


def test_a_dtype_or_device_that_is_not_there_is_refused():
    with pytest.raises(PlacementInvalid, match="there is no dtype 'float8'"):
        place("float8", "cpu")
    with pytest.raises(PlacementInvalid, match="there is no device 'gpu'"):
        place("float32", "gpu")
    with pytest.raises(EnvironmentMissing, match="there is no device cuda:99"):
        place("float32", "cuda:99")


def test_another_gpu_than_the_first_becomes_the_current_one(monkeypatch):
    """Else kernels would be launched, and events recorded, on the first one, where nothing of the model is."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)

    for device in ("cuda:0", "cuda", "cpu", "cuda:1"):
        place("float32", device)

    assert current == [torch.device("cuda:1")]
