"""Whole runs: what lies in the draft's folder, what a kill leaves, what a rerun does."""

import json
import shutil
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from byte_tokenizer import CHATML, save_target_with
from eyas.cli.app import main
from eyas.contract.reading.open_draft import open_draft
from eyas.contract.spec.layer_ids import AuxBoundaryBeyondTarget
from eyas.contract.spec.target_spec import read_target
from eyas.data.rows.row_store import Rows
from eyas.data.rows.same_text import RowsOfAnotherTarget
from eyas.errors import EnvironmentMissing
from eyas.models.load_draft import load_draft
from eyas.models.placement import place
from eyas.models.save_draft import DraftUnwritable
from eyas.models.target import Target
from eyas.records.atomic import OutputExists, WriteFailed
from eyas.records.checkpoint import METRICS, STATE, TENSORS, resume_folder
from eyas.records.eval_record import Figures
from eyas.records.eval_rows import EvalRow, write_eval_rows
from eyas.records.rows import RULES, RowsUnreadable
from eyas.replay.eval_config import EvalConfig
from eyas.replay.evaluate import evaluate
from eyas.talk import Silent
from eyas.train.config import TrainConfig, TrainConfigInvalid
from eyas.train.optimise.optimiser import TrainingDiverged
from eyas.train.optimise.trainer import Trainer
from eyas.train.preflight.examine import DiskTooSmall, plan_train
from eyas.train.preflight.train_plan import DraftVocabTooLarge
from eyas.train.request import TrainRequest
from eyas.train.rows.held_out_rows import HeldOutUnusable
from eyas.train.rows.packing import pack
from eyas.train.run.held_out_replay import HeldOutReplay
from eyas.train.run.train import Trained, train
from eyas.train.run.unfinished_run import CheckpointDamaged, CheckpointForeign
from tiny_draft import tiny_spec
from train_run_folder import make_run_folder

NO_FIGURES = Figures(
    accept_length=1.0,
    accept_length_request_mean=1.0,
    per_position=(0.0, 0.0),
    per_position_conditional=(0.0, 0.0),
    accepted_at=(0, 0),
    rounds=1,
    num_tokens=1,
    num_requests=1,
    num_draft_tokens=2,
)
CONFIG = TrainConfig(steps=6, batch_tokens=150, draft_vocab_size=32, ttt_steps=3, checkpoint_every_s=1e-9)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_run_folder(tmp_path_factory.mktemp("inputs"))


def request_for(inputs: tuple[Path, Path], out: Path, **more) -> TrainRequest:
    return TrainRequest(target=inputs[0], rows=inputs[1], out=out, device="cpu", **more)


def run(request: TrainRequest, config: TrainConfig = CONFIG) -> Trained:
    talk = Silent()
    return train(request, config, plan_train(request, config, talk), talk)


def curve(folder: Path) -> list[tuple[int, float, float]]:
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    return [(line["tokens"], line["loss"], line["grad_norm"]) for line in lines]


class Stopped(Exception):
    """Stands for whatever ends a process between two steps."""


def stop_before(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Trainer.start_step

    def start_step(self, rows, number):
        if number == step:
            raise Stopped
        return whole(self, rows, number)

    monkeypatch.setattr(Trainer, "start_step", start_step)


def test_the_draft_loads_says_what_it_is_and_has_its_metrics_beside_it(inputs, tmp_path: Path):
    run(request_for(inputs, tmp_path / "draft"))

    target = Target.load(inputs[0], place("float32", "cpu"))
    draft = load_draft(
        tmp_path / "draft",
        place("float32", "cpu"),
        target_spec=read_target(inputs[0]),
        target_embedding=target.parts.embedding,
    )
    assert draft.spec.draft_vocab_size == 32
    assert draft.spec.aux_boundaries == (1, 2, 3)
    sidecar = json.loads((tmp_path / "draft" / "eyas.json").read_text())
    rows = json.loads((inputs[1] / "manifest.json").read_text())
    assert sidecar["about"]["rows"]["fingerprint"] == rows["fingerprint"]
    assert sidecar["target"]["tokenizer_hash"] == rows["tokenizer"]
    assert sidecar["contract"]["trained_length"] == rows["longest"]
    assert sidecar["about"]["steps"] == 6
    metrics = [json.loads(line) for line in (tmp_path / "draft" / METRICS).read_text().splitlines()]
    assert [line["step"] for line in metrics] == [1, 2, 3, 4, 5, 6]
    assert {line["schema"] for line in metrics} == {"eyas.metrics/1"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["draft"]


def test_the_same_seed_gives_the_same_draft_and_another_seed_another(inputs, tmp_path: Path):
    weights = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(request_for(inputs, tmp_path / name), replace(CONFIG, seed=seed, steps=2))
        weights.append(load_file(tmp_path / name / "model.safetensors"))
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not torch.equal(weights[0]["fc.weight"], weights[2]["fc.weight"])


def test_init_only_writes_a_draft_that_loads_and_has_seen_nothing(inputs, tmp_path: Path):
    done = run(request_for(inputs, tmp_path / "draft", init_only=True))
    assert list(done.metrics) == []
    target = Target.load(inputs[0], place("float32", "cpu"))
    load_draft(
        tmp_path / "draft", place("float32", "cpu"), target_spec=read_target(inputs[0]),
        target_embedding=target.parts.embedding, target_head=target.parts.head, talk=Silent(),
    )  # fmt: skip
    assert json.loads((tmp_path / "draft" / "eyas.json").read_text())["about"]["tokens"] == 0
    assert not (tmp_path / "draft" / METRICS).exists()


@pytest.mark.parametrize("engine", ["sglang==0.5.23", "vllm==0.33.0"])
def test_the_engines_load_every_tensor_of_an_initialised_draft(engine: str, inputs, tmp_path: Path, capsys):
    run(request_for(inputs, tmp_path / "draft", init_only=True))
    assert main(["check", str(tmp_path / "draft"), "--target", str(inputs[0]), "--for", engine]) == 0
    assert "nothing to report" in capsys.readouterr().out


def test_given_boundaries_are_trained_written_and_read_back(inputs, tmp_path: Path):
    run(request_for(inputs, tmp_path / "draft"), replace(CONFIG, aux_boundaries=(1, 2, 4), steps=1))
    assert open_draft(tmp_path / "draft", read_target(inputs[0])).aux_boundaries == (1, 2, 4)


def test_boundaries_beyond_the_target_are_refused(inputs, tmp_path: Path):
    config = replace(CONFIG, aux_boundaries=(1, 2, 9))
    with pytest.raises(AuxBoundaryBeyondTarget, match="the target has 4 layers"):
        plan_train(request_for(inputs, tmp_path / "draft"), config, Silent())


def test_what_could_not_be_saved_is_refused_before_it_is_trained(inputs, tmp_path: Path, monkeypatch):
    no_format = tiny_spec(fc_bias=True, attention_bias=True)
    monkeypatch.setattr("eyas.train.preflight.train_plan.draft_spec_for", lambda *_, **__: no_format)
    with pytest.raises(DraftUnwritable):
        plan_train(request_for(inputs, tmp_path / "draft"), CONFIG, Silent())


def test_a_run_may_start_from_a_layer_that_the_target_has(inputs, tmp_path: Path):
    assert len(run(request_for(inputs, tmp_path / "new"), replace(CONFIG, init_layer=3, steps=1)).metrics) == 1
    with pytest.raises(TrainConfigInvalid, match="the draft would start from layer 9 of 4"):
        run(request_for(inputs, tmp_path / "other"), replace(CONFIG, init_layer=9))
    with pytest.raises(TrainConfigInvalid, match="--init-layer 1, it has trained weights"):
        run(
            request_for(inputs, tmp_path / "other", init_from=tmp_path / "new"),
            replace(CONFIG, init_layer=1, steps=1, draft_vocab_size=None),
        )


FORMER = {"optimiser": "adamw", "schedule": "cosine", "final_lr_share": 0.1}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_defaults_learn_more_from_the_same_rows_than_the_former_ones(inputs, tmp_path: Path, seed: int):
    losses = []
    for name, options in (("new", {}), ("former", FORMER)):
        config = replace(CONFIG, steps=30, eval_every=0, checkpoint_every_s=0.0, seed=seed, **options)
        losses.append(run(request_for(inputs, tmp_path / name), config).metrics[-1]["loss"])
    assert losses[0] < 0.8 * losses[1]


def test_a_frozen_head_stays_as_it_was_initialised(inputs, tmp_path: Path):
    frozen = replace(CONFIG, freeze_head=True, lr=0.1, steps=2)
    run(request_for(inputs, tmp_path / "before", init_only=True), frozen)
    run(request_for(inputs, tmp_path / "after"), frozen)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("before", "after"))
    assert torch.equal(before["lm_head.weight"], after["lm_head.weight"])
    assert not torch.equal(before["fc.weight"], after["fc.weight"])


ALL_STATE = {"optimiser": "muon", "average_share": 0.5, "feedback_dropout": 0.2, "schedule": "wsd", "batch_ramp": 0.4}


@pytest.mark.parametrize("options", [{}, ALL_STATE], ids=["plain", "all-state"])
def test_a_run_stopped_and_resumed_is_bit_identical_to_one_that_was_not(options, inputs, tmp_path: Path, monkeypatch):
    config = replace(CONFIG, **options)
    run(request_for(inputs, tmp_path / "whole"), config)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_before(3, patch)
        run(request_for(inputs, tmp_path / "parts"), config)
    assert not (tmp_path / "parts").exists()
    assert json.loads((resume_folder(tmp_path / "parts") / STATE).read_text())["step"] == 3
    run(request_for(inputs, tmp_path / "parts"), config)

    assert curve(tmp_path / "parts") == curve(tmp_path / "whole")
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert not resume_folder(tmp_path / "parts").exists()


def test_a_resumed_run_with_other_options_or_rows_is_refused_with_what_changed(inputs, tmp_path: Path, monkeypatch):
    request = request_for(inputs, tmp_path / "draft")
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_before(2, patch)
        run(request)

    with pytest.raises(CheckpointForeign) as caught:
        run(request, replace(CONFIG, lr=0.5, seed=4))
    assert "--lr: None then, 0.5 now" in caught.value.why
    assert "--seed: 0 then, 4 now" in caught.value.why
    assert "rows" not in caught.value.why

    run(replace(request, restart=True), replace(CONFIG, seed=4))
    assert len(curve(tmp_path / "draft")) == 6


def test_what_changes_no_result_may_change_on_the_way(inputs, tmp_path: Path, monkeypatch):
    # An error of memory says: give a smaller --micro-batch-tokens. The run must then go on.
    run(request_for(inputs, tmp_path / "whole"))
    request = request_for(inputs, tmp_path / "parts")
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_before(3, patch)
        run(request)
    run(request, replace(CONFIG, micro_batch_tokens=50, log_every=2))
    for one, other in zip(curve(tmp_path / "whole"), curve(request.out), strict=True):
        assert other == pytest.approx(one, rel=1e-4)


def test_another_dtype_of_the_target_is_another_run(inputs, tmp_path: Path, monkeypatch):
    request = request_for(inputs, tmp_path / "draft")
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_before(2, patch)
        run(request)
    with pytest.raises(CheckpointForeign, match="target dtype: 'float32' then, 'bfloat16' now"):
        run(replace(request, dtype="bfloat16"))


def test_a_restart_never_deletes_the_draft_that_it_goes_on_from(inputs, tmp_path: Path):
    resume = resume_folder(tmp_path / "draft")
    run(request_for(inputs, resume / "draft"), replace(CONFIG, steps=1, checkpoint_every_s=0.0))
    request = request_for(inputs, tmp_path / "draft", init_from=resume / "draft", restart=True)
    with pytest.raises(TrainConfigInvalid, match="--restart would delete"):
        run(request)
    assert (resume / "draft" / "config.json").exists()


def test_a_damaged_checkpoint_is_told_apart_from_a_foreign_one(inputs, tmp_path: Path, monkeypatch):
    request = request_for(inputs, tmp_path / "draft")
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_before(2, patch)
        run(request)
    weights = resume_folder(request.out) / "state.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointDamaged, match="--restart"):
        run(request)


def as_older_eyas_wrote_it(folder: Path) -> Path:
    """A checkpoint without fingerprints of its files."""
    document = json.loads((folder / STATE).read_text())
    assert set(document.pop("fingerprints")) == {METRICS, TENSORS}
    (folder / STATE).write_text(json.dumps(document, indent=2))
    return folder


def test_a_checkpoint_without_fingerprints_is_resumed(inputs, kept, tmp_path: Path):
    request = request_for(inputs, tmp_path / "draft")
    as_older_eyas_wrote_it(shutil.copytree(kept, resume_folder(request.out)))
    assert [record["step"] for record in run(request).metrics][-1] == CONFIG.steps


@pytest.mark.parametrize("kind", ["best", "draft", "exp_avg", "metrics"])
def test_one_flipped_bit_in_a_checkpoint_is_damage(inputs, tmp_path: Path, monkeypatch, kind: str):
    request = request_for(inputs, tmp_path / "d", held_out=held_out_file(tmp_path, inputs))
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_before(5, patch)
        run(request, EVALUATED)
    folder = resume_folder(request.out)
    if kind == "metrics":
        text = (folder / METRICS).read_text()
        (folder / METRICS).write_text(text.replace('"lr": 0.0', '"lr": 0.1', 1))
    else:
        tensors = load_file(folder / TENSORS)
        key = max((key for key in tensors if key.startswith(f"{kind}.")), key=lambda key: tensors[key].numel())
        tensors[key].view(-1)[0].neg_()  # the sign bit
        save_file(tensors, folder / TENSORS)
    with pytest.raises(CheckpointDamaged, match=r"changed since the checkpoint was written[\s\S]*--restart"):
        run(request, EVALUATED)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (STATE, lambda text: '"a"'),
        (STATE, lambda text: "[" * 100_000),
        (STATE, lambda text: text.replace('"step": 2', '"step": "2"')),
        (STATE, lambda text: text.replace('"step": 2', '"step": 2.0')),
        (STATE, lambda text: text.replace('"step": 2', '"step": -2')),
        (STATE, lambda text: text.replace('"step": 2', '"step": 6')),
        (STATE, lambda text: text.replace('"step": 2', f'"step": {10**30}')),
        (STATE, lambda text: json.dumps(json.loads(text) | {"run": None})),
        (METRICS, lambda text: "null\n"),
        (METRICS, lambda text: ""),
        (METRICS, lambda text: text + text),
        (METRICS, lambda text: text.replace('"loss": ', '"loss": "x", "l": ')),
    ],
)
def test_a_checkpoint_that_contradicts_itself_is_damage(inputs, kept, tmp_path: Path, name: str, change):
    request = request_for(inputs, tmp_path / "draft")
    folder = as_older_eyas_wrote_it(shutil.copytree(kept, resume_folder(request.out)))
    text = (folder / name).read_text()
    assert change(text) != text
    (folder / name).write_text(change(text))
    with pytest.raises(CheckpointDamaged, match="--restart"):
        run(request)


@pytest.mark.parametrize("kind", ["draft", "exp_avg", "rng"])
def test_a_checkpoint_with_tensors_of_another_shape_or_dtype_is_damage(inputs, kept, tmp_path: Path, kind: str):
    request = request_for(inputs, tmp_path / "draft")
    folder = as_older_eyas_wrote_it(shutil.copytree(kept, resume_folder(request.out)))
    tensors = load_file(folder / TENSORS)
    key = next(key for key in tensors if key.startswith(f"{kind}."))
    changed = tensors[key].float() if kind == "rng" else tensors[key][:1].clone()
    save_file({**tensors, key: changed}, folder / TENSORS)
    with pytest.raises(CheckpointDamaged, match="--restart"):
        run(request)


def test_a_run_stopped_by_its_first_step_begins_again(inputs, tmp_path: Path):
    request, bad = request_for(inputs, tmp_path / "draft"), replace(CONFIG, steps=2)
    plan = plan_train(request, bad, Silent())
    whole = Trainer.start_step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "start_step", lambda self, rows, number: _broken(self, whole, rows, number))
        with pytest.raises(TrainingDiverged):
            train(request, bad, plan, Silent())
    assert json.loads((resume_folder(request.out) / STATE).read_text())["step"] == 0

    assert len(run(request, bad).metrics) == 2


def _broken(trainer: Trainer, whole, rows, number: int):
    """A step with a weight that is no number, as bad memory would make it."""
    weight = next(iter(trainer.draft.parameters()))
    with torch.no_grad():
        weight[0] = float("nan")
    return whole(trainer, rows, number)


@pytest.fixture(scope="module")
def kept(inputs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run leaves that was stopped after two steps."""
    request = request_for(inputs, tmp_path_factory.mktemp("kept") / "draft")
    with pytest.MonkeyPatch.context() as patch:
        stop_before(2, patch)
        with pytest.raises(Stopped):
            run(request)
    return resume_folder(request.out)


def test_an_existing_draft_is_never_overwritten(inputs, tmp_path: Path):
    (tmp_path / "draft").mkdir()
    with pytest.raises(OutputExists):
        run(request_for(inputs, tmp_path / "draft"))


def test_a_place_where_no_draft_can_be_written_is_told_before_it_is_trained(inputs, tmp_path: Path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for out, error in [("file/draft", WriteFailed), ("link/draft", WriteFailed), ("link", OutputExists)]:
        with pytest.raises(error):
            plan_train(request_for(inputs, tmp_path / out), CONFIG, Silent())
    plan_train(request_for(inputs, tmp_path / "new" / "draft"), CONFIG, Silent())
    assert not (tmp_path / "new").exists()


def test_rows_of_another_template_are_refused_before_anything_is_loaded(inputs, tmp_path: Path):
    other = save_target_with(tmp_path / "other", CHATML + " ")
    request = TrainRequest(target=other, rows=inputs[1], out=tmp_path / "draft")
    with pytest.raises(RowsOfAnotherTarget, match="chat template differ"):
        plan_train(request, CONFIG, Silent())


def test_rows_without_a_supervised_token_are_refused(inputs, tmp_path: Path, monkeypatch):
    manifest = replace(Rows(inputs[1]).manifest, num_supervised=0)
    monkeypatch.setattr(
        "eyas.train.preflight.train_plan.Rows", lambda folder: SimpleNamespace(folder=folder, manifest=manifest)
    )
    with pytest.raises(RowsUnreadable, match=f"none of the {manifest.num_tokens} tokens in 20 rows"):
        plan_train(request_for(inputs, tmp_path / "d"), CONFIG, Silent())


@pytest.mark.parametrize(("rules", "which"), [(3, "rules 3,"), (None, "rules that are not recorded,")])
def test_rows_of_older_rules_are_told(inputs, tmp_path: Path, rules: int | None, which: str):
    rows, talk = tmp_path / "rows", Silent()
    shutil.copytree(inputs[1], rows)
    document = json.loads((rows / "manifest.json").read_text())
    assert document.pop("rules") == RULES
    (rows / "manifest.json").write_text(json.dumps(document | ({} if rules is None else {"rules": rules})))
    plan_train(request_for((inputs[0], rows), tmp_path / "d"), CONFIG, talk)
    assert any(f"made by {which}" in note and "--replace" in note for note in talk.notes)


def test_too_few_distinct_tokens_for_the_draft_vocabulary_are_told(inputs, tmp_path: Path):
    talk = Silent()
    plan = plan_train(request_for(inputs, tmp_path / "d"), replace(CONFIG, draft_vocab_size=200), talk)
    assert plan.vocabulary is not None
    assert any(f"only {plan.vocabulary.num_seen} distinct tokens" in note for note in talk.notes)


def test_a_target_with_fewer_tokens_than_the_default_vocabulary_gives_all_of_them_and_it_is_told(inputs, tmp_path):
    request, talk = request_for(inputs, tmp_path / "d"), Silent()
    plan = plan_train(request, replace(CONFIG, draft_vocab_size=None), talk)
    size = read_target(inputs[0]).vocab_size
    assert plan.spec.draft_vocab_size == size < 8192
    assert not plan.spec.has_vocab_map
    assert f"draft vocabulary: all {size} tokens of the target, fewer than the usual 8192" in talk.notes
    with pytest.raises(DraftVocabTooLarge, match=f"the target has {size} tokens"):
        plan_train(request, replace(CONFIG, draft_vocab_size=8192), Silent())


@pytest.mark.parametrize("size", [8192, 8193])
def test_the_default_vocabulary_gives_way_to_no_larger_target(size):
    assert TrainConfig().offered_of(size) == (8192, ())


def held_out_file(folder: Path, inputs: tuple[Path, Path]) -> Path:
    """The training rows themselves, as recorded continuations after ten tokens."""
    rows = [row.token_ids for row in Rows(inputs[1])][:6]
    write_eval_rows(
        [EvalRow(id=str(i), set="h", prompt_ids=ids[:10], response_ids=ids[10:]) for i, ids in enumerate(rows)],
        folder / "held_out.jsonl",
    )
    return folder / "held_out.jsonl"


def records_of(folder: Path, schema: str) -> list[dict]:
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    return [line for line in lines if line["schema"] == schema]


EVALUATED = replace(CONFIG, steps=9, eval_every=2, held_out_draft_tokens=2, lr=3e-2)


def test_the_draft_that_accepts_most_is_written_with_the_step_that_chose_it(inputs, tmp_path: Path, monkeypatch):
    # The figure is set so that the second of five replays is the best, whatever the draft learns.
    lengths = iter([1.5, 1.9, 1.7, 1.9, 1.8, 1.85])  # the last one is of the file
    monkeypatch.setattr(HeldOutReplay, "measure", lambda self, draft: replace(NO_FIGURES, accept_length=next(lengths)))
    held_out = held_out_file(tmp_path, inputs)
    done = run(request_for(inputs, tmp_path / "best", held_out=held_out), EVALUATED)
    monkeypatch.undo()
    short = replace(EVALUATED, steps=4, schedule="constant", warmup_share=0.0)

    assert done.kept is not None
    assert done.kept["step"] == 4
    assert [r["step"] for r in records_of(tmp_path / "best", "eyas.held-out/1")] == [2, 4, 6, 8, 9]
    assert [r["is_best"] for r in records_of(tmp_path / "best", "eyas.held-out/1")] == [True, True, False, False, False]
    about = json.loads((tmp_path / "best" / "eyas.json").read_text())["about"]
    assert (about["steps"], about["held_out"]["accept_length"]) == (4, 1.9)
    (written,) = records_of(tmp_path / "best", "eyas.written/1")
    assert (written["step"], written["accept_length"]) == (4, 1.85)
    assert about["as_written"] == written == done.written

    # The weights are those of a run that ends there (with a schedule that does not look at the end).
    lengths = iter([1.5, 1.9, 1.7, 1.9, 1.8, 1.85])  # the last one is of the file
    monkeypatch.setattr(HeldOutReplay, "measure", lambda self, draft: replace(NO_FIGURES, accept_length=next(lengths)))
    run(request_for(inputs, tmp_path / "long", held_out=held_out), replace(short, steps=9))
    monkeypatch.undo()
    run(request_for(inputs, tmp_path / "short"), short)
    long, ends = (load_file(tmp_path / name / "model.safetensors") for name in ("long", "short"))
    assert all(torch.equal(long[name], ends[name]) for name in ends)


def test_a_resumed_run_keeps_its_replays_and_its_best_draft(inputs, tmp_path: Path, monkeypatch):
    held_out = held_out_file(tmp_path, inputs)
    whole = run(request_for(inputs, tmp_path / "whole", held_out=held_out), EVALUATED)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_before(7, patch)
        run(request_for(inputs, tmp_path / "parts", held_out=held_out), EVALUATED)
    parts = run(request_for(inputs, tmp_path / "parts", held_out=held_out), EVALUATED)

    def figures(trained: Trained) -> list[tuple[int, float]]:
        return [(record["step"], record["accept_length"]) for record in trained.held_out]

    assert len(figures(whole)) == 5
    assert figures(parts) == figures(whole)
    assert whole.kept is not None
    assert parts.kept is not None
    assert parts.kept["step"] == whole.kept["step"]
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_replay_while_training_is_that_of_eval_on_the_draft_written(inputs, keep, tmp_path: Path):
    held_out = held_out_file(tmp_path, inputs)
    done = run(request_for(inputs, tmp_path / "d", held_out=held_out), replace(EVALUATED, keep=keep, ttt_steps=2))
    record = evaluate(tmp_path / "d", inputs[0], [held_out], EvalConfig(num_draft_tokens=2, device="cpu"), Silent())
    chosen = done.kept or done.held_out[-1]
    assert (done.kept is None) == (keep == "last")
    assert done.written is not None
    assert done.written["step"] == chosen["step"]
    for figures in (chosen, done.written):
        assert (figures["accept_length"], figures["rounds"]) == (record.figures.accept_length, record.figures.rounds)


def test_a_draft_of_which_nothing_is_accepted_is_told(inputs, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(HeldOutReplay, "measure", lambda self, draft: NO_FIGURES)
    talk, request = Silent(), request_for(inputs, tmp_path / "d", held_out=held_out_file(tmp_path, inputs))
    done = train(request, EVALUATED, plan_train(request, EVALUATED, Silent()), talk)
    (note,) = done.notes
    assert note in talk.notes
    assert "nothing is accepted: accept length 1.00 over 1 rounds" in note
    assert f"too few training tokens ({done.plan.num_tokens})" in note
    assert "When nothing is accepted" in note

    monkeypatch.setattr(HeldOutReplay, "measure", lambda self, draft: replace(NO_FIGURES, accept_length=1.2))
    assert run(replace(request, out=tmp_path / "better"), EVALUATED).notes == []


def test_of_several_kinds_of_held_out_rows_each_has_its_accept_length_in_the_sidecar(inputs, tmp_path: Path):
    rows = [
        EvalRow(id=f"{kind}{i}", set=kind, prompt_ids=(40, 41, 42 + i), response_ids=tuple(range(50, 62 + i)))
        for kind in ("chat", "sums")
        for i in range(2)
    ]
    write_eval_rows(rows, tmp_path / "kinds.jsonl")
    done = run(request_for(inputs, tmp_path / "draft", held_out=tmp_path / "kinds.jsonl"), replace(CONFIG, steps=2))
    record = json.loads((tmp_path / "draft" / "eyas.json").read_text())["about"]["as_written"]
    assert done.written is not None
    assert record["sets"] == done.written["sets"]
    assert set(record["sets"]) == {"chat", "sums"}
    low, high = sorted(record["sets"].values())
    assert low <= record["accept_length"] <= high


def test_held_out_rows_beside_the_training_rows_are_used_unless_told_not_to(inputs, tmp_path: Path):
    rows = shutil.copytree(inputs[1], tmp_path / "rows")
    held_out_file(rows, inputs)
    request = TrainRequest(target=inputs[0], rows=rows, out=tmp_path / "d", device="cpu")
    assert len(run(request, replace(CONFIG, steps=2)).held_out) == 2
    never = replace(CONFIG, eval_every=0)
    assert plan_train(replace(request, out=tmp_path / "e"), never, Silent()).held_out is None
    with pytest.raises(TrainConfigInvalid, match="--eval-every 0"):
        plan_train(replace(request, out=tmp_path / "e", held_out=rows / "held_out.jsonl"), never, Silent())


def test_held_out_rows_with_ids_that_the_target_does_not_have_are_refused_before_it_is_loaded(inputs, tmp_path: Path):
    rows = [EvalRow(id="a", set="h", prompt_ids=(5, 6), response_ids=(7, 8, 100_000))]
    write_eval_rows(rows, tmp_path / "h.jsonl")
    with pytest.raises(HeldOutUnusable, match="token id 100000"):
        plan_train(request_for(inputs, tmp_path / "d", held_out=tmp_path / "h.jsonl"), CONFIG, Silent())


def test_other_held_out_rows_are_another_run(inputs, tmp_path: Path, monkeypatch):
    held_out = held_out_file(tmp_path, inputs)
    request = request_for(inputs, tmp_path / "d", held_out=held_out)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_before(3, patch)
        run(request, EVALUATED)
    held_out.write_text("\n".join(held_out.read_text().splitlines()[:3]))
    with pytest.raises(CheckpointForeign, match="held-out rows"):
        run(request, EVALUATED)


def test_a_target_or_a_template_that_changed_is_named_on_resuming(inputs, tmp_path: Path, monkeypatch):
    folder = shutil.copytree(inputs[0], tmp_path / "target")
    request = TrainRequest(target=folder, rows=inputs[1], out=tmp_path / "d", device="cpu")
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_before(2, patch)
        run(request)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] * 2
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointForeign, match="target weights: "):
        run(request)
    save_target_with(folder, CHATML + " ")
    with pytest.raises(RowsOfAnotherTarget, match="chat template differ"):
        run(request)


def test_a_file_that_is_gone_on_from_and_changed_is_named_on_resuming(inputs, tmp_path: Path, monkeypatch):
    run(request_for(inputs, tmp_path / "first", init_only=True))
    weights = tmp_path / "first" / "model.safetensors"
    request = request_for(inputs, tmp_path / "d", init_from=weights)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_before(2, patch)
        run(request)
    tensors = load_file(weights)
    save_file({**tensors, "norm.weight": tensors["norm.weight"] * 2}, weights, metadata={"format": "pt"})
    with pytest.raises(CheckpointForeign, match="init from: "):
        run(request)


def test_rows_that_changed_are_named_on_resuming(inputs, tmp_path: Path, monkeypatch):
    _, other = make_run_folder(tmp_path / "other", answers=["Quite another answer."])
    request = request_for(inputs, tmp_path / "d")
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_before(2, patch)
        run(request)
    with pytest.raises(CheckpointForeign, match="rows: "):
        run(replace(request, rows=other))


def test_a_step_that_is_no_number_ends_the_run_with_the_last_good_draft_kept(inputs, tmp_path: Path, monkeypatch):
    whole, config = Trainer.start_step, replace(CONFIG, log_every=4, checkpoint_every_s=1e6)

    def start_step(self, rows, step):
        if step == 2:
            self.draft.norm.weight.register_hook(lambda grad: grad * float("nan"))
        return whole(self, rows, step)

    monkeypatch.setattr(Trainer, "start_step", start_step)
    with pytest.raises(TrainingDiverged, match=r"norm\.weight") as caught:
        run(request_for(inputs, tmp_path / "d"), config)
    monkeypatch.undo()

    good = resume_folder(tmp_path / "d") / "draft"
    assert caught.value.where == "optimiser step 3"
    assert f"--init-from {good}" in caught.value.__notes__[1]
    assert "the draft's own computation overflows" in caught.value.__notes__[0]
    assert json.loads((good / "eyas.json").read_text())["about"]["steps"] == 2
    assert not (tmp_path / "d").exists()
    run(request_for(inputs, tmp_path / "on", init_from=good), replace(config, steps=1))


def test_the_curve_does_not_depend_on_how_often_it_is_read(inputs, tmp_path: Path):
    run(request_for(inputs, tmp_path / "often"))
    run(request_for(inputs, tmp_path / "seldom"), replace(CONFIG, log_every=4, checkpoint_every_s=0.0))
    assert curve(tmp_path / "often") == curve(tmp_path / "seldom")
    records = records_of(tmp_path / "seldom", "eyas.metrics/1")
    assert all(a["seconds"] <= b["seconds"] for a, b in pairwise(records))
    assert {record["mfu"] for record in records} == {None}, "a CPU's peak is not known"
    assert all(record["tokens_per_s"] > 0 and record["peak_memory_bytes"] > 2**20 for record in records)
    assert all(0.0 <= record["data_wait_share"] <= 1.0 for record in records)


def test_waiting_for_data_is_fetching_and_packing(inputs, tmp_path: Path, monkeypatch):
    def slowly(work):
        return lambda *given, **more: time.sleep(0.03) or work(*given, **more)

    request, config = request_for(inputs, tmp_path / "d"), replace(CONFIG, steps=2, checkpoint_every_s=0.0)
    plan = plan_train(request, config, Silent())
    monkeypatch.setattr("eyas.train.optimise.trainer.pack", slowly(pack))
    monkeypatch.setattr(Rows, "__getitem__", slowly(Rows.__getitem__))
    train(request, config, plan, Silent())
    first, second = records_of(tmp_path / "d", "eyas.metrics/1")
    waited = second["data_wait_share"] * (second["seconds"] - first["seconds"])
    assert waited > 0.03 * (1 + len(plan.batches[1].rows)) - 0.01


def test_tensorboard_gets_every_record_and_a_sink_without_its_package_is_refused(inputs, tmp_path: Path, monkeypatch):
    held_out = held_out_file(tmp_path, inputs)
    run(request_for(inputs, tmp_path / "d", tensorboard=tmp_path / "events", held_out=held_out), EVALUATED)
    read = EventAccumulator(str(tmp_path / "events"))
    read.Reload()
    steps = records_of(tmp_path / "d", "eyas.metrics/1")
    assert [(e.step, e.value) for e in read.Scalars("loss")] == [(r["step"], pytest.approx(r["loss"])) for r in steps]
    assert [e.step for e in read.Scalars("held_out/accept_length")] == [2, 4, 6, 8, 9]
    monkeypatch.setattr("eyas.train.request.find_spec", lambda name: None)
    for name, given in (("wandb", "project"), ("tensorboard", tmp_path / "other")):
        with pytest.raises(EnvironmentMissing, match=f"{name} is not installed[\\s\\S]*pip install"):
            plan_train(request_for(inputs, tmp_path / "e", **{name: given}), CONFIG, Silent())


def test_a_disk_that_cannot_hold_the_run_is_told_before_it_starts(inputs, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(DiskTooSmall):
        plan_train(request_for(inputs, tmp_path / "d"), CONFIG, Silent())


def test_a_draft_that_is_gone_on_from_is_replayed_first_and_written_if_it_stays_the_best(inputs, tmp_path: Path):
    held_out = held_out_file(tmp_path, inputs)
    good = replace(CONFIG, steps=25, lr=2e-2, optimiser="adamw", schedule="constant", checkpoint_every_s=0.0)
    run(request_for(inputs, tmp_path / "first"), good)
    spoilt = replace(EVALUATED, lr=10.0, optimiser="adamw", grad_clip=1e3, steps=4)
    request = request_for(inputs, tmp_path / "second", init_from=tmp_path / "first", held_out=held_out)

    done = run(request, spoilt)

    assert [record["step"] for record in done.held_out] == [0, 2, 4]
    lengths = [record["accept_length"] for record in done.held_out]
    assert lengths[0] > max(lengths[1:]) + 0.02, "it is spoilt"
    assert done.kept is not None
    assert done.kept["step"] == 0
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second"))
    assert all(torch.equal(first[name], second[name]) for name in first)
