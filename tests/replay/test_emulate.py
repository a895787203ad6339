import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas import shipped
from eyas.contract.check.check import check
from eyas.contract.engines.loading import ledger as ledger_module
from eyas.contract.engines.loading.ledger import KeyEntry, Ledger
from eyas.contract.engines.registry import parse_engine
from eyas.contract.files.read_checkpoint import read_checkpoint
from eyas.contract.spec.target_spec import read_target
from eyas.models.draft import Eagle3Draft
from eyas.models.load_draft import load_draft
from eyas.models.placement import place
from eyas.models.save_draft import save_draft
from eyas.models.target import LiveStates
from eyas.records.eval_rows import read_eval_rows
from eyas.replay.emulate import EMULATED, FILLS, IMPOSSIBLE, EmulationImpossible, emulate
from eyas.replay.predict import predict
from eyas.talk import Silent
from tiny_draft import tiny_draft, tiny_text
from tiny_target import tiny_target

CPU = place("float32", "cpu")
SHAPE = {"hidden_size": 32, "target_hidden_size": 32, "vocab_size": 64, "draft_vocab_size": 60, "embedding": "target"}


@pytest.fixture
def target(tmp_path):
    tiny_target(seed=5).save_pretrained(tmp_path / "target")
    return tmp_path / "target"


def saved(target, tmp_path, **changes):
    save_draft(tiny_draft(**SHAPE, **changes), tmp_path / "draft", target_spec=read_target(target))
    return tmp_path / "draft"


def as_layers_0(folder):
    tensors = load_file(folder / "model.safetensors")
    save_file({n.replace("midlayer.", "layers.0."): t for n, t in tensors.items()}, folder / "model.safetensors")
    (folder / "eyas.json").unlink(missing_ok=True)


def in_bf16(target, beside):
    """The target's folder with a config of the draft's dtype: SGLang would run a float32 target in float16."""
    folder = beside.with_name("target-bf16")
    folder.mkdir(exist_ok=True)
    for path in target.iterdir():
        if path.name != "config.json" and not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)
    config = json.loads((target / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16", "torch_dtype": "bfloat16"}))
    return folder


def judged(folder, target, engine: str) -> tuple[Eagle3Draft, Ledger]:
    embedding = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
    draft = load_draft(folder, CPU, target_spec=read_target(target), target_embedding=embedding)
    report = check(read_checkpoint(folder), read_checkpoint(in_bf16(target, folder)), [parse_engine(engine)])
    return draft, next(iter(report.ledgers.values()))


@torch.no_grad()
def test_a_healthy_draft_is_served_as_it_was_trained(target, tmp_path):
    draft, ledger = judged(saved(target, tmp_path), target, "sglang==0.5.9")

    served = emulate(draft, ledger, "garbage")

    ids, aux = tiny_text()
    aux = aux.repeat(1, 1, 2)
    assert (served.lost, served.not_emulated) == ((), ())
    for (_, ours), (_, theirs) in zip(
        draft.ttt_forward(ids, aux, 3), served.draft.ttt_forward(ids, aux, 3), strict=True
    ):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("fill", FILLS)
def test_what_sglang_drops_holds_ones_in_norms_and_the_fill_elsewhere(target, tmp_path, fill):
    folder = saved(target, tmp_path)
    as_layers_0(folder)
    draft, ledger = judged(folder, target, "sglang==0.5.9")

    served = emulate(draft, ledger, fill)

    now, before = served.draft.state_dict(), draft.state_dict()
    assert len(served.lost) == 10
    assert all(name.startswith("layers.0.") for name in served.lost)
    assert all(torch.equal(now[name], before[name]) for name in now if name not in served.lost)
    assert bool((now["layers.0.hidden_norm.weight"] == 1).all())
    spread = now["layers.0.self_attn.q_proj.weight"].std().item()
    assert spread == pytest.approx({"zeros": 0.0, "normal": 0.02, "garbage": 3.0}[fill], rel=0.1)


def test_a_switch_whose_key_the_engine_ignores_is_off(target, tmp_path):
    draft, ledger = judged(saved(target, tmp_path, feedback="post-norm"), target, "sglang==0.5.9")
    assert draft.spec.feedback == "post-norm"

    served = emulate(draft, ledger, "zeros")

    assert [key.fate for key in ledger.keys if key.key == "norm_output"] == ["ignored"]
    assert served.draft.spec.feedback == "pre-norm"


def test_the_engine_s_own_boundaries_are_tapped(target, tmp_path):
    folder = saved(target, tmp_path, aux_boundaries=(1, 2, 3))
    config = json.loads((folder / "config.json").read_text())
    del config["eagle_config"]  # where SGLang looks for them; eyas reads the top level too
    (folder / "config.json").write_text(json.dumps(config))
    draft, ledger = judged(folder, target, "sglang==0.5.9")

    served = emulate(draft, ledger, "zeros")

    assert draft.spec.aux_boundaries == (1, 2, 3)
    assert served.draft.spec.aux_boundaries == ledger.aux != (1, 2, 3)


def test_every_silent_damage_of_the_ledger_is_emulated_or_leaves_no_figure():
    reasons = tomllib.loads((Path(ledger_module.__file__).parent / "reasons.toml").read_text())
    silent = {code for code, words in reasons.items() if words["severity"] in ("mild", "severe", "fatal")}

    assert silent <= EMULATED | IMPOSSIBLE
    assert not EMULATED & IMPOSSIBLE


def test_norms_of_queries_and_keys_that_the_class_has_not_are_not_computed(target, tmp_path):
    draft, ledger = judged(saved(target, tmp_path, qk_norm=True), target, "sglang==0.5.9")

    served = emulate(draft, ledger, "zeros")

    assert not served.draft.spec.qk_norm
    assert not [name for name in served.draft.state_dict() if "q_norm" in name]


def test_biases_that_the_class_has_not_are_no_unknown(target, tmp_path):
    draft, ledger = judged(saved(target, tmp_path), target, "sglang==0.5.9")
    keys = tuple(KeyEntry(key=key, fate="ignored") for key in ("attention_bias", "mlp_bias", "bias", "norm_output"))

    assert emulate(draft, replace(ledger, keys=keys), "zeros").not_emulated == ()
    strange = (*keys, KeyEntry(key="logit_bent", fate="unknown"))
    assert emulate(draft, replace(ledger, keys=strange), "zeros").not_emulated == ("logit_bent",)


def test_the_targets_head_is_cut_as_the_engine_cuts_it(target, tmp_path):
    folder = saved(target, tmp_path)
    draft, _ = judged(folder, target, "vllm==0.33.0")
    tensors = load_file(folder / "model.safetensors")
    save_file({n: t for n, t in tensors.items() if "lm_head" not in n}, folder / "model.safetensors")
    report = check(read_checkpoint(folder), read_checkpoint(target), [parse_engine("vllm==0.33.0")])
    (ledger,) = report.ledgers.values()
    head = torch.randn(64, 32)

    served = emulate(draft, ledger, "zeros", target={"embedding": draft.embedding_weight, "head": head})

    assert "head-cut" in {reason.code for reason in ledger.reasons}
    assert torch.equal(served.draft.head_weight, head[:60])
    with pytest.raises(EmulationImpossible, match="target's head"):
        emulate(draft, ledger, "zeros", target={"embedding": draft.embedding_weight})


def test_an_engine_that_does_not_load_the_draft_has_no_prediction(target, tmp_path):
    folder = saved(target, tmp_path)
    draft, _ = judged(folder, target, "sglang==0.5.9")
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "foo.weight": torch.ones(2)}, folder / "model.safetensors")
    (ledger,) = check(read_checkpoint(folder), read_checkpoint(target), [parse_engine("vllm==0.33.0")]).ledgers.values()

    with pytest.raises(EmulationImpossible, match="does not load this draft"):
        emulate(draft, ledger, "zeros")


@pytest.mark.smollm2
@pytest.mark.timeout(1200)
def test_the_real_draft_under_another_prefix_is_predicted_to_accept_next_to_nothing(smollm2, smollm2_folder, tmp_path):
    tensors, folder = {}, tmp_path / "renamed"
    for shard in sorted(shipped.draft_folder().glob("*.safetensors")):
        tensors |= load_file(shard)
    folder.mkdir()
    (folder / "config.json").write_text((shipped.draft_folder() / "config.json").read_text())
    save_file(tensors, folder / "model.safetensors")
    as_layers_0(folder)
    draft = load_draft(folder, CPU, target_spec=read_target(smollm2_folder), target_embedding=smollm2.parts.embedding)
    rows = read_eval_rows([shipped.eval_rows_path()])[::8]
    checked = check(
        read_checkpoint(folder), read_checkpoint(in_bf16(smollm2_folder, folder)), [parse_engine("sglang==0.5.9")]
    )

    prediction = predict(LiveStates(smollm2), draft, rows, next(iter(checked.ledgers.values())), 5, Silent())

    low, high = prediction.accept_length_range
    assert prediction.trained.accept_length > 1.8
    assert 1.0 <= low <= high < 1.2
    assert not math.isnan(low)
