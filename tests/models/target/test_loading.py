"""Folders as users have them: nested wrappers, wrappers without a class, remote code, missing weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from eyas.contract.spec.target_parts import TargetPartMissing
from eyas.models.placement import place
from eyas.models.target import Target, require_own_states
from eyas.models.target.loading import TargetUnloadable
from tiny_target import CONFIGS, NESTED, tiny_target

CPU = place("float32", "cpu")
IDS = torch.tensor([[3, 17, 5, 60, 9, 44, 21, 8, 33, 12]])


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def rename_weights(folder: Path, rename: Any) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(
        {rename(name): tensor for name, tensor in weights.items()}, folder / "model.safetensors", {"format": "pt"}
    )


def assert_same(loaded: Target, model: Any) -> None:
    wanted, found = Target(model).forward(IDS, (0, 2, 4)), loaded.forward(IDS, (0, 2, 4))
    torch.testing.assert_close(found.aux, wanted.aux, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loaded.logits(found.last), Target(model).logits(wanted.last), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [*CONFIGS, *NESTED])
def test_every_kind_comes_back_from_its_folder(kind, tmp_path):
    model = tiny_target(kind)
    model.save_pretrained(tmp_path)
    assert_same(Target.load(tmp_path, CPU), model)


@pytest.mark.parametrize("inner", ["language_model.model.", "model.language_model."])
def test_a_wrapper_without_a_class_gives_its_text_model(inner, tmp_path):
    model = tiny_target("deepseek_v3")
    model.save_pretrained(tmp_path)
    text = json.loads((tmp_path / "config.json").read_text())
    head = "language_model.lm_head." if inner == "language_model.model." else "lm_head."
    rename_weights(
        tmp_path, lambda n: n.replace("model.", inner, 1) if n.startswith("model.") else n.replace("lm_head.", head)
    )
    wrapper = {"model_type": "kimi_k9", "text_config": text | {"model_type": "kimi_k2"}, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(wrapper))

    assert_same(Target.load(tmp_path, CPU), model)


def test_the_code_that_a_model_brings_along_is_never_run(tmp_path):
    model = tiny_target("deepseek_v3")
    model.save_pretrained(tmp_path)
    proof = tmp_path / "was-run"
    (tmp_path / "modeling_kimi.py").write_text(f"open({str(proof)!r}, 'w')\nclass Config: ...\nclass Model: ...\n")
    remote = {"AutoConfig": "modeling_kimi.Config", "AutoModelForCausalLM": "modeling_kimi.Model"}
    edit_config(tmp_path, model_type="kimi_k2", auto_map=remote)

    assert_same(Target.load(tmp_path, CPU), model)

    edit_config(tmp_path, model_type="nobody-knows-it")
    with pytest.raises(TargetUnloadable):
        Target.load(tmp_path, CPU)
    assert not proof.exists()


@pytest.mark.parametrize("lost", ["model.layers.2.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"])
def test_a_weight_that_is_not_in_the_files_is_named_instead_of_random(lost, tmp_path):
    tiny_target("llama").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights[lost]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(TargetUnloadable, match=lost.replace(".", r"\.")):
        Target.load(tmp_path, CPU)


def test_a_head_or_a_norm_that_is_not_all_the_model_does_is_named(tmp_path):
    scaled, normed = tiny_target("llama"), tiny_target("llama")
    scaled.register_forward_hook(lambda m, args, out: setattr(out, "logits", out.logits * 2) or out)
    normed.model.norm = nn.Sequential(normed.model.norm, nn.Linear(32, 32))
    normed.model.register_forward_hook(
        lambda m, args, out: setattr(out, "last_hidden_state", out.last_hidden_state + 1) or out
    )

    require_own_states(Target(tiny_target("llama")), tmp_path)
    with pytest.raises(TargetPartMissing, match="the model's own logits cannot be computed"):
        require_own_states(Target(scaled), tmp_path)
    with pytest.raises(TargetPartMissing, match="the state after its last layer"):
        require_own_states(Target(normed), tmp_path)
