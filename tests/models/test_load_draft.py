import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.errors import EyasError
from eyas.models.load_draft import (
    DraftTargetMismatch,
    DraftTensorMissing,
    DraftTensorShape,
    DraftTensorUnknown,
    VocabMapInvalid,
    fill,
    load_draft,
)
from eyas.models.placement import place
from eyas.models.save_draft import DraftUnwritable, save_draft
from eyas.records.atomic import OutputExists
from eyas.talk import Silent
from tiny_draft import SWITCHES, tiny_draft, tiny_text

CPU = place("float32", "cpu")
# Everything else is written in SGLang's format.
IN_VLLM_FORMAT = {
    "latent attention, yarn, two layers, norm per state, post-norm feedback",
    "post-norm residual",
    "q/k norm",
    "sliding window",
    "window in one of two layers",
}
UNWRITABLE = {"biases"}  # of q, k, v and fc at once


def saved(tmp_path, **changes):
    draft = tiny_draft(**changes)
    save_draft(draft, tmp_path / "draft", dtype=torch.float32)
    return draft, tmp_path / "draft"


def edit(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("switch", sorted(SWITCHES.keys() - UNWRITABLE))
@torch.no_grad()
def test_a_draft_written_and_read_is_the_same_function(tmp_path, switch):
    draft, folder = saved(tmp_path, **SWITCHES[switch])

    loaded = load_draft(folder, CPU, target_embedding=draft._shared[0], target_head=draft._shared[1])

    ids, aux = tiny_text()
    for (state, logits), (state_2, logits_2) in zip(
        draft.ttt_forward(ids, aux, 3), loaded.ttt_forward(ids, aux, 3), strict=True
    ):
        assert torch.equal(state, state_2)
        assert torch.equal(logits, logits_2)
    assert loaded.spec.aux_boundaries == draft.spec.aux_boundaries


@pytest.mark.parametrize("switch", sorted(SWITCHES.keys() - UNWRITABLE))
def test_the_first_format_that_can_hold_a_draft_is_taken_and_named(tmp_path, switch):
    wanted = "vllm" if switch in IN_VLLM_FORMAT else "sglang"

    assert save_draft(tiny_draft(**SWITCHES[switch]), tmp_path / "draft") == wanted
    assert json.loads((tmp_path / "draft" / "eyas.json").read_text())["dialect"] == wanted


def test_an_embedding_that_sglang_would_overwrite_is_not_written_in_its_format(tmp_path):
    assert save_draft(tiny_draft(target_hidden_size=32), tmp_path / "same width") == "vllm"
    assert save_draft(tiny_draft(target_hidden_size=16), tmp_path / "another width") == "sglang"


@torch.no_grad()
def test_biases_that_only_a_reader_builds_are_written_as_zeros(tmp_path):
    draft = tiny_draft(attention_bias=True)
    assert save_draft(draft, tmp_path / "draft", dtype=torch.float32) == "vllm"

    loaded = load_draft(tmp_path / "draft", CPU)

    ids, aux = tiny_text()
    assert not loaded.layers[0].self_attn.o_proj.bias.any()
    for (_, logits), (_, logits_2) in zip(draft.ttt_forward(ids, aux, 3), loaded.ttt_forward(ids, aux, 3), strict=True):
        torch.testing.assert_close(logits, logits_2, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("switch", sorted(UNWRITABLE))
def test_what_no_format_can_hold_is_refused_not_dropped(tmp_path, switch):
    with pytest.raises(
        DraftUnwritable, match="has no biases on q, k and v; vLLM has no bias on fc; speculators has no"
    ):
        save_draft(tiny_draft(**SWITCHES[switch]), tmp_path / "draft")

    assert not (tmp_path / "draft").exists()


def test_an_existing_folder_is_kept_unless_told_otherwise(tmp_path):
    draft, folder = saved(tmp_path)
    with pytest.raises(OutputExists):
        save_draft(draft, folder)

    save_draft(draft, folder, replace_existing=True)

    assert load_draft(folder, CPU).dtype == torch.float32


def test_the_weights_are_bf16_on_disk_unless_told_otherwise_and_the_sidecar_names_the_switches(tmp_path):
    save_draft(tiny_draft(aux_norm="per-state"), tmp_path / "draft", about={"steps": 3})

    stored = load_file(tmp_path / "draft" / "model.safetensors")
    sidecar = json.loads((tmp_path / "draft" / "eyas.json").read_text())
    assert {t.dtype for t in stored.values()} == {torch.bfloat16, torch.int64, torch.bool}
    assert sidecar["contract"]["aux_norm"] == "per-state"
    assert sidecar["about"] == {"steps": 3}


def test_a_bin_checkpoint_is_read_too(tmp_path):
    draft, folder = saved(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")

    assert torch.equal(load_draft(folder, CPU).fc.weight, draft.fc.weight)


def rename(old: str, new: str):
    def change(tensors):
        for name in [n for n in tensors if n.startswith(old)]:
            tensors[new + name.removeprefix(old)] = tensors.pop(name)

    return change


FAULTS = {
    "no fc": lambda t: t.pop("fc.weight"),
    "no q_proj": lambda t: t.pop("midlayer.self_attn.q_proj.weight"),
    "half of the layer elsewhere": rename("midlayer.mlp", "layers.0.feed_forward"),
    "an unknown tensor": lambda t: t.update({"foo.weight": torch.ones(3)}),
    "a wrong shape": lambda t: t.update({"midlayer.mlp.up_proj.weight": torch.ones(47, 32)}),
    "absolute ids in d2t": lambda t: t.update({"d2t": t["d2t"] + torch.arange(24)}),
    "a NaN": lambda t: t["fc.weight"][1, 2].fill_(float("nan")),
    "an infinity": lambda t: t["norm.weight"][3].fill_(float("-inf")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_never_loads(tmp_path, fault):
    _, folder = saved(tmp_path)
    edit(folder, FAULTS[fault])

    with pytest.raises(EyasError):
        load_draft(folder, CPU)


def test_a_truncated_file_never_loads(tmp_path):
    _, folder = saved(tmp_path)
    data = (folder / "model.safetensors").read_bytes()
    (header_length,) = struct.unpack("<Q", data[:8])
    (folder / "model.safetensors").write_bytes(data[: 8 + header_length + 100])

    with pytest.raises(EyasError):
        load_draft(folder, CPU)


def test_the_account_closes_in_both_directions():
    draft = tiny_draft()
    tensors = {name: tensor.clone() for name, tensor in draft.state_dict().items()}

    def fill_with(change):
        given = dict(tensors)
        change(given)
        fill(draft, given, where="here", talk=Silent())

    fill_with(lambda t: t.pop("t2d"))  # follows from d2t
    with pytest.raises(DraftTensorMissing, match=r"lacks layers\.0\.self_attn\.v_proj\.weight"):
        fill_with(lambda t: t.pop("layers.0.self_attn.v_proj.weight"))
    with pytest.raises(DraftTensorUnknown, match=r"input_norm\.weight"):
        fill_with(lambda t: t.update({"input_norm.weight": torch.ones(48)}))
    with pytest.raises(DraftTensorShape, match=r"norm\.weight is \[31\], wanted \[32\]"):
        fill_with(lambda t: t.update({"norm.weight": torch.ones(31)}))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t: t.update({"d2t": t["d2t"] + 30}), "the target has 40 ids"),
        (lambda t: t.update({"d2t": -torch.arange(24)}), "gives 1 distinct ids for 24 draft ids"),
        (lambda t: t.update({"t2d": ~t["t2d"]}), "t2d and d2t disagree at 40 target ids"),
        (lambda t: t.update({"d2t": t["d2t"].float()}), r"it is \[24\] of float32"),
        (lambda t: t.update({"d2t": t["d2t"][None]}), "wanted: a list of integers"),
    ],
)
def test_a_map_that_is_none_is_refused(change, why):
    draft = tiny_draft()
    tensors = {name: tensor.clone() for name, tensor in draft.state_dict().items()}
    change(tensors)

    with pytest.raises(VocabMapInvalid, match=why):
        fill(draft, tensors, where="here", talk=Silent())


def test_an_identity_map_is_set_aside_and_said():
    draft, talk = tiny_draft(draft_vocab_size=40), Silent()

    fill(draft, {**draft.state_dict(), "d2t": torch.zeros(40, dtype=torch.int64)}, where="here", talk=talk)

    assert talk.notes == ["here: d2t is the identity (the draft has the whole vocabulary) and is not used"]
    with pytest.raises(VocabMapInvalid, match="every offset must be 0"):
        fill(draft, {**draft.state_dict(), "d2t": torch.ones(40, dtype=torch.int64)}, where="here", talk=talk)


def test_a_draft_that_shares_the_embedding_needs_one_that_fits(tmp_path):
    _, folder = saved(tmp_path, embedding="target")

    with pytest.raises(DraftTargetMismatch, match="the draft has no embedding of its own"):
        load_draft(folder, CPU)
    with pytest.raises(DraftTargetMismatch, match=r"it is \[40, 16\], the draft wants \[40, 32\]"):
        load_draft(folder, CPU, target_embedding=torch.zeros(40, 16))
    # A target may be padded to more rows than the draft knows of.
    load_draft(folder, CPU, target_embedding=torch.zeros(48, 32))
