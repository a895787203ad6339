"""Every shape of draft that can be asked for trains, is saved, comes back the same, and is judged for the engines."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eyas.cli.app import build_app
from eyas.cli.recipe_file import _options as options_of
from eyas.contract.check.check import CheckOptions, check
from eyas.contract.engines.registry import parse_engine
from eyas.contract.files.read_checkpoint import read_checkpoint
from eyas.contract.spec.target_spec import read_target
from eyas.diagnostic import SEVERITIES
from eyas.models.draft import Eagle3Draft
from eyas.models.load_draft import load_draft
from eyas.models.placement import place
from eyas.models.save_draft import save_draft
from eyas.models.target import Target
from eyas.replay.replay import accepted_from_everywhere
from eyas.talk import Silent
from eyas.train.config import DraftShape, TrainConfig, TrainConfigInvalid
from eyas.train.preflight.examine import plan_train
from eyas.train.preflight.train_plan import run_identity
from eyas.train.request import TrainRequest
from eyas.train.run.train import train
from train_run_folder import make_run_folder

# Boundary 1 has no layer id in SGLang's reading of latent drafts.
CONFIG = TrainConfig(
    aux_boundaries=(2, 3, 4), steps=8, batch_tokens=4000, draft_vocab_size=32, ttt_steps=3, lr=3e-3, eval_every=0
)
CPU = place("float32", "cpu")
# Shape, format, and whether (SGLang 0.5.23, vLLM 0.33.0) load it without an error.
SHAPES: dict[str, tuple[dict[str, Any], str, tuple[bool, bool]]] = {
    "plain": ({}, "sglang", (True, True)),
    "two layers": ({"num_layers": 2}, "sglang", (True, False)),
    "latent attention": ({"attention": "mla"}, "sglang", (True, True)),
    "eagle 3.1": ({"feedback": "post-norm", "aux_norm": "per-state"}, "sglang", (True, True)),
    "norm over all states": ({"aux_norm": "over-concat"}, "sglang", (True, True)),
    "normed residual": ({"residual": "post-norm"}, "vllm", (False, True)),
    "norms of queries and keys": ({"qk_norm": True}, "vllm", (False, True)),
    "an embedding of its own": ({"embedding": "own"}, "vllm", (True, True)),
    "everything": (
        {"num_layers": 2, "attention": "mla", "feedback": "post-norm", "aux_norm": "per-state", "embedding": "own"},
        "vllm",
        (False, True),
    ),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_run_folder(tmp_path_factory.mktemp("inputs"), num_hidden_layers=6)


def run(inputs: tuple[Path, Path], out: Path, config: TrainConfig, **more: Any) -> Silent:
    talk = Silent()
    request = TrainRequest(target=inputs[0], rows=inputs[1], out=out, device="cpu", **more)
    train(request, config, plan_train(request, config, talk), talk)
    return talk


def loaded(inputs: tuple[Path, Path], folder: Path) -> tuple[Eagle3Draft, Target]:
    target = Target.load(inputs[0], CPU)
    options = {"target_embedding": target.parts.embedding, "target_head": target.parts.head}
    return load_draft(folder, CPU, target_spec=read_target(inputs[0]), **options), target


def codes_for(folder: Path, target: Path, engine: str) -> set[str]:
    report = check(read_checkpoint(folder), read_checkpoint(target), [parse_engine(engine)])
    return {f.code for f in report.findings}


def errors_for(folder: Path, target: Path, engine: str) -> list[str]:
    report = check(read_checkpoint(folder), read_checkpoint(target), [parse_engine(engine)], CheckOptions(deep=True))
    return [f"{f.code}: {f.what}" for f in report.findings if SEVERITIES.index(f.severity) >= SEVERITIES.index("error")]


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_trains_all_its_weights_and_comes_back_from_the_first_format_that_holds_it(inputs, name, tmp_path):
    options, dialect, _ = SHAPES[name]
    config = replace(CONFIG, shape=DraftShape(**options))

    run(inputs, tmp_path / "before", config, init_only=True)
    talk = run(inputs, tmp_path / "draft", config)

    assert json.loads((tmp_path / "draft" / "eyas.json").read_text())["dialect"] == dialect
    assert any("the draft will be in vllm's format" in note for note in talk.notes) == (dialect == "vllm")
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("before", "draft"))
    same = {key for key in before if torch.equal(before[key], after[key])}
    assert same <= {"d2t", "t2d"}, f"{sorted(same)} got no gradient"
    metrics = [json.loads(line) for line in (tmp_path / "draft" / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["loss"] < metrics[0]["loss"]

    draft, _ = loaded(inputs, tmp_path / "draft")
    wanted = DraftShape(**options)
    found = (draft.spec.num_layers, draft.spec.draft_class, draft.spec.feedback, draft.spec.aux_norm)
    assert found == (wanted.num_layers, wanted.attention, wanted.feedback, wanted.aux_norm)
    assert (draft.spec.residual, draft.spec.qk_norm, draft.spec.embedding) == (
        wanted.residual,
        wanted.qk_norm,
        wanted.embedding,
    )
    for engine, is_fine in zip(("sglang==0.5.23", "vllm==0.33.0"), SHAPES[name][2], strict=True):
        found = errors_for(tmp_path / "draft", inputs[0], engine)
        assert (found == []) == is_fine, f"{engine}: {found}"


@pytest.mark.parametrize("name", SHAPES)
@torch.no_grad()
def test_a_shape_saved_in_full_precision_replays_identically(inputs, name, tmp_path):
    options, dialect, _ = SHAPES[name]
    run(inputs, tmp_path / "draft", replace(CONFIG, steps=2, shape=DraftShape(**options)))
    draft, target = loaded(inputs, tmp_path / "draft")

    assert save_draft(draft, tmp_path / "again", dtype=torch.float32, target_spec=read_target(inputs[0])) == dialect
    again, _ = loaded(inputs, tmp_path / "again")

    assert draft.spec.aux_boundaries is not None
    ids = torch.randint(3, 200, (2, 20), generator=torch.Generator().manual_seed(2))
    aux = target.forward(ids, draft.spec.aux_boundaries).aux
    for (state, logits), (state_2, logits_2) in zip(
        draft.ttt_forward(ids, aux, 4), again.ttt_forward(ids, aux, 4), strict=True
    ):
        assert torch.equal(state, state_2)
        assert torch.equal(logits, logits_2)
    marks = [accepted_from_everywhere(d, ids, aux, 3, [20, 20]).tolist() for d in (draft, again)]
    assert marks[0] == marks[1]


@pytest.mark.parametrize(("shape", "frozen"), [({}, "lm_head.weight"), ({"embedding": "own"}, "embed_tokens.weight")])
def test_what_is_frozen_stays(inputs, shape, frozen, tmp_path):
    options = {"freeze_head": frozen.startswith("lm_head"), "freeze_embedding": frozen.startswith("embed")}
    config = replace(CONFIG, shape=DraftShape(**shape), **options)
    run(inputs, tmp_path / "before", config, init_only=True)
    run(inputs, tmp_path / "after", config)
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("before", "after"))
    assert torch.equal(before[frozen], after[frozen])
    assert not torch.equal(before["fc.weight"], after["fc.weight"])


def test_check_says_which_engine_takes_a_trained_embedding(inputs, tmp_path):
    run(inputs, tmp_path / "draft", replace(CONFIG, shape=DraftShape(embedding="own")))
    assert "overwritten" in codes_for(tmp_path / "draft", inputs[0], "sglang==0.5.23")
    assert "embedding-kept" in codes_for(tmp_path / "draft", inputs[0], "vllm==0.33.0")


@pytest.mark.parametrize("size", [0, "full"])
def test_the_whole_vocabulary_needs_no_map(size, inputs, tmp_path):
    run(inputs, tmp_path / "draft", replace(CONFIG, draft_vocab_size=size))
    draft, _ = loaded(inputs, tmp_path / "draft")
    assert not draft.spec.has_vocab_map
    assert "d2t" not in load_file(tmp_path / "draft" / "model.safetensors")
    assert errors_for(tmp_path / "draft", inputs[0], "sglang==0.5.23") == []


def test_going_on_from_a_draft_keeps_its_shape_and_map_and_refuses_another(inputs, tmp_path):
    shape = DraftShape(num_layers=2, aux_norm="per-state")
    run(inputs, tmp_path / "first", replace(CONFIG, shape=shape))
    slow, first_draft = replace(CONFIG, lr=1e-9, steps=1), tmp_path / "first"
    run(inputs, tmp_path / "second", replace(slow, draft_vocab_size=None), init_from=first_draft)

    first, second = (load_file(tmp_path / folder / "model.safetensors") for folder in ("first", "second"))
    assert first.keys() == second.keys()
    assert torch.equal(first["d2t"], second["d2t"])
    torch.testing.assert_close(first["fc.weight"], second["fc.weight"], atol=1e-4, rtol=0.02)
    assert torch.equal(first["lm_head.weight"], second["lm_head.weight"])
    for change, says in [
        ({"shape": DraftShape(num_layers=3, attention="mla")}, "--num-layers 3, it has 2; --attention mla, it has gqa"),
        ({"aux_boundaries": (1, 2, 4)}, "--aux-boundaries 1 2 4, it has 2 3 4"),
        ({"draft_vocab_size": 64}, "--draft-vocab-size 64, it has 32"),
        ({"draft_vocab_size": "full"}, r"--draft-vocab-size \d+, it has 32"),
    ]:
        with pytest.raises(TrainConfigInvalid, match=says):
            run(inputs, tmp_path / "third", replace(slow, **change), init_from=first_draft)
    run(inputs, tmp_path / "same", replace(slow, shape=shape, aux_boundaries=(2, 3, 4)), init_from=first_draft)


def test_shapes_that_cannot_be_are_refused_all_at_once():
    with pytest.raises(
        TrainConfigInvalid,
        match=r"--num-layers is 9, wanted 1 … 8; --intermediate-size is .*; --qk-norm beside --attention mla",
    ):
        TrainConfig(shape=DraftShape(num_layers=9, intermediate_size=0, qk_norm=True, attention="mla"))


def test_the_options_are_flat_on_the_command_line_and_in_the_identity_of_a_run(inputs, tmp_path):
    request = TrainRequest(target=inputs[0], rows=inputs[1], out=tmp_path / "d", device="cpu")
    config = replace(CONFIG, shape=DraftShape(num_layers=3))
    identity = run_identity(plan_train(request, config, Silent()), config, weights="w", dtype="float32", init_from=None)
    assert identity["--num-layers"] == 3
    assert "--shape" not in identity
    assert {f"--{f.name.replace('_', '-')}" for f in fields(DraftShape)} <= set(options_of(build_app()["train"]))
