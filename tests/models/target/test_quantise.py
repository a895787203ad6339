"""int8 weights work where torchao is; without it, or where it cannot, the error says so before any weight is read."""

import importlib.util

import pytest
import torch
import torch.nn.functional as F

from eyas.engine.eagle_draft import FusedDraft
from eyas.engine.engine import Engine, Limits
from eyas.engine.llama.llama_target import LlamaTarget
from eyas.engine.llama.llama_weights import fuse_llama, quantise_llama
from eyas.engine.open_engine import open_engine
from eyas.engine.transformers_target import TransformersTarget
from eyas.errors import EnvironmentMissing
from eyas.models.placement import place
from eyas.models.save_draft import save_draft
from eyas.models.target import Target
from eyas.models.target.quantise import (
    QuantisationUnsupported,
    is_quantised,
    quantise_target,
    quantised,
    require_quantisable,
    stored_bytes,
)
from eyas.talk import Silent
from tiny_draft import tiny_draft
from tiny_target import tiny_target

CPU = place("float32", "cpu")
PROMPT, LIMITS = [3, 17, 5, 60, 9, 44, 21], Limits(max_new_tokens=12)
needs_torchao = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")


def test_without_torchao_the_way_to_it_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    require_quantisable("none", CPU)
    with pytest.raises(EnvironmentMissing, match=r"pip install 'eyas\[quantise\]'"):
        require_quantisable("int8", CPU)
    with pytest.raises(EnvironmentMissing):  # before the folder, which is not there, is looked at
        open_engine(tmp_path / "no", None, CPU, cache=tmp_path, num_threads=1, talk=Silent(), quantize="int8")


def test_int4_is_refused_where_its_kernels_do_not_run(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    require_quantisable("int8", CPU)
    with pytest.raises(QuantisationUnsupported, match="int4 weights need a GPU and bfloat16"):
        require_quantisable("int4", CPU)


@needs_torchao
def test_a_quantised_matrix_multiplies_nearly_the_same_and_is_a_quarter_as_large():
    weight = torch.randn(96, 64, generator=torch.Generator().manual_seed(0))
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))

    small = quantised(weight, "int8")

    assert is_quantised(small)
    assert not is_quantised(weight)
    assert 96 * 64 < stored_bytes(small) < 0.3 * stored_bytes(weight)  # codes, a scale and a zero for each row
    assert stored_bytes(weight) == 4 * 96 * 64
    error = (F.linear(x, small) - F.linear(x, weight)).norm() / F.linear(x, weight).norm()
    assert 0 < error < 0.01
    assert quantised(weight, "int4") is weight  # 64 is no multiple of a group


def draft_for(target: Target) -> FusedDraft:
    return FusedDraft(tiny_draft(target_hidden_size=32, vocab_size=64, aux_boundaries=(1, 2, 4)).eval(), (1, 2, 4))


@needs_torchao
@pytest.mark.parametrize("kind", ["qwen3_moe", "gemma3_text", "deepseek_v3", "gpt_oss"])
def test_speculative_text_of_a_quantised_target_is_its_own_plain_text(kind):
    talk, target = Silent(), Target(tiny_target(kind))
    ids = torch.tensor([PROMPT])
    before = target.logits(target.forward(ids).last)

    quantise_target(target, "int8", talk)

    after = target.logits(target.forward(ids).last)
    assert 0 < (after - before).abs().max() < before.abs().max()
    assert any("the matrices of the layers are int8" in note for note in talk.notes)
    engine = Engine(TransformersTarget(target), draft_for(target))
    plain, text = (engine.generate(PROMPT, LIMITS, num_draft_tokens=k).ids for k in (0, 3))
    assert text == plain


@needs_torchao
def test_the_fast_path_and_transformers_give_the_same_quantised_target():
    model = tiny_target("llama")
    state = {name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()}
    weights = quantise_llama(fuse_llama(model.config.to_dict(), state.get), "int8", Silent())
    through = Target(model)
    quantise_target(through, "int8", Silent())

    assert weights.is_quantised
    fast = LlamaTarget(weights)
    fast.start(32, (1, 4))
    out = fast.prefill(PROMPT)
    states = through.forward(torch.tensor([PROMPT]), (1, 4))
    torch.testing.assert_close(out.aux_states, states.aux[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(out.logits[0], through.logits(states.last[0, -1]), atol=1e-4, rtol=1e-4)


@needs_torchao
def test_the_engine_opens_a_folder_quantised_and_says_so(tmp_path):
    tiny_target("llama").save_pretrained(tmp_path / "target")
    draft = tiny_draft(target_hidden_size=32, vocab_size=64, aux_boundaries=(1, 2, 3))
    save_draft(draft, tmp_path / "draft")
    talk = Silent()
    options = {"cache": tmp_path, "num_threads": 1, "talk": talk}

    whole = open_engine(tmp_path / "target", None, CPU, **options)
    opened = open_engine(tmp_path / "target", tmp_path / "draft", CPU, **options, quantize="int8")

    assert opened.target_path == "torch"
    assert whole.weight_bytes is not None
    assert opened.weight_bytes is not None
    assert opened.weight_bytes < 0.6 * whole.weight_bytes
    plain, text = (opened.engine.generate(PROMPT, LIMITS, num_draft_tokens=k).ids for k in (0, 3))
    assert text == plain


@needs_torchao
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_on_a_gpu_both_kinds_multiply_nearly_the_same_in_bf16(kind):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(1024, 2048, generator=generator).to("cuda", torch.bfloat16)
    x = torch.randn(5, 2048, generator=generator).to("cuda", torch.bfloat16)

    small = quantised(weight, kind)

    assert is_quantised(small)
    assert stored_bytes(small) < (0.6 if kind == "int8" else 0.35) * stored_bytes(weight)
    error = (F.linear(x, small) - F.linear(x, weight)).float().norm() / F.linear(x, weight).float().norm()
    assert error < (0.02 if kind == "int8" else 0.15)
