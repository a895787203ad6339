"""What a run is told before it starts."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eyas.cli.app import main
from eyas.data.text.tokenise import TokenRow
from eyas.models.target import FrozenParts, Target
from eyas.talk import Silent
from eyas.train.config import TrainConfig
from eyas.train.optimise.teaching import Teaching
from eyas.train.preflight.examine import duration, examine, mask_statistics, plan_train, say_time, say_time_elsewhere
from eyas.train.preflight.starting_draft import starting_draft
from eyas.train.preflight.target_checks import TeacherWrong, check_teacher
from eyas.train.request import TrainRequest
from live_trainer import live_trainer
from tiny_target import tiny_target
from train_run_folder import make_run_folder

CONFIG = TrainConfig(steps=5, batch_tokens=150, draft_vocab_size=32, ttt_steps=3)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_run_folder(tmp_path_factory.mktemp("inputs"))


def rows(*masks: str) -> list[TokenRow]:
    """One row for each mask: "1" = supervised."""
    return [TokenRow(tuple(range(3, 3 + len(mask))), tuple(c == "1" for c in mask)) for mask in masks]


def test_the_mask_is_counted_by_rows_stretches_and_unrolled_steps():
    found = mask_statistics(rows("0011100110", "0000", "1111"), ttt_steps=3)
    assert (found.num_rows, found.num_tokens, found.num_without) == (3, 18, 1)
    assert found.supervised_share == pytest.approx(9 / 18)
    assert (found.least_share, found.most_share) == (0.0, 1.0)
    assert found.mean_stretch == pytest.approx((3 + 2 + 4) / 3)
    # step j learns from supervised tokens at indices of 2 + j and more
    assert found.first_step_share == pytest.approx((5 + 2) / 9)
    assert found.last_step_share == pytest.approx(3 / 9)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt_oss"])
def test_the_recomputed_head_is_the_models_own(name):
    check = check_teacher(Teaching.live(Target(tiny_target(name, seed=1)), CONFIG), rows("0" * 40))
    assert check is not None
    assert check.num_tokens == 40
    assert check.same_argmax == 1.0
    assert check.largest_difference < 1e-4


def test_a_model_that_does_more_than_its_head_is_refused(monkeypatch):
    target = Target(tiny_target("llama", seed=1))
    monkeypatch.setattr(FrozenParts, "logits", lambda self, last: -torch.nn.functional.linear(last, self.head))
    with pytest.raises(TeacherWrong, match="LlamaForCausalLM"):
        check_teacher(Teaching.live(target, CONFIG), rows("0" * 40))


def test_all_of_it_is_said_and_nothing_is_written(inputs, tmp_path: Path):
    talk = Silent()
    request = TrainRequest(target=inputs[0], rows=inputs[1], out=tmp_path / "d", device="cpu")
    plan = plan_train(request, CONFIG, talk)
    document = examine(request, CONFIG, plan, talk).as_document()

    said = "\n".join(talk.lines)
    for words in ("draft vocabulary: 32", "mask: ", "RoPE of the draft: theta", "trained parameters", "MiB  target"):
        assert words in said
    assert "disk: " in said
    assert "teacher: the recomputed head has the model's own argmax at 100.0%" in said
    assert "measured on 2 trial steps: " in said
    assert any("eyas prepare" in note and "--regenerate" in note for note in talk.notes)
    assert document["trial"]["tokens_per_s"] > 0
    assert document["trial"]["seconds"] == pytest.approx(plan.num_tokens / document["trial"]["tokens_per_s"])
    assert (
        document["trial"]["peak_memory_bytes"] >= plan.costs.memory_bytes["this process so far (python, torch)"] > 2**26
    )
    assert list(tmp_path.iterdir()) == []


def test_a_run_of_one_step_can_be_tried_too(inputs, tmp_path: Path):
    request = TrainRequest(target=inputs[0], rows=inputs[1], out=tmp_path / "d", device="cpu")
    config = replace(CONFIG, steps=1)
    plan = plan_train(request, config, Silent())
    trial = examine(request, config, plan, Silent()).trial
    assert trial.tokens_per_s > 0
    assert str(trial).startswith("measured on 1 trial step: ")


@pytest.mark.parametrize(("seconds", "words"), [(4.2, "4 s"), (600, "10 min"), (12_000, "3 h 20 min")])
def test_durations_are_read_at_a_glance(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize(("options", "device"), [((), "cuda"), (("--device", "cpu"), "cpu")])
def test_a_target_of_config_and_tokenizer_alone_is_planned_for(inputs, tmp_path: Path, capsys, options, device: str):
    bare = tmp_path / "bare"
    shutil.copytree(inputs[0], bare, ignore=shutil.ignore_patterns("*.safetensors"))
    command = ["train", "--target", str(bare), "--data", str(inputs[1]), "--out", str(tmp_path / "d"), "--steps", "5"]

    assert main([*command, *options, "--dry-run", "--json"]) == 0

    printed = capsys.readouterr()
    document = json.loads(printed.out.splitlines()[-1])
    request = TrainRequest(target=inputs[0], rows=inputs[1], out=tmp_path / "d", device="cpu")
    with_weights = plan_train(request, TrainConfig(steps=5), Silent(), device_type=device).as_document()["costs"]
    for name in ("trained_parameters", "gflop_per_token", "checkpoint_bytes", "draft_bytes"):
        assert document["costs"][name] == with_weights[name]
    assert document["costs"]["memory_bytes"]["target weights"] > 0
    assert (document["answers"], document["teacher"], document["trial"]) == (None, None, None)
    assert "has no weights here: answers, teacher and speed are not checked" in printed.err
    assert (document["estimated_seconds"] is None) == (device == "cpu")
    assert ("on one H200" in printed.err) == (device == "cuda")
    assert main(command) == 2, "training itself needs the weights"


def test_a_target_whose_weights_are_links_is_planned_and_loaded(inputs, tmp_path: Path):
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in inputs[0].iterdir():
        (linked / path.name).symlink_to(path)
    request = TrainRequest(target=linked, rows=inputs[1], out=tmp_path / "d", device="cpu")
    plan = plan_train(request, CONFIG, Silent())
    assert examine(request, CONFIG, plan, Silent()).trial.tokens_per_s > 0


def test_a_run_of_two_steps_is_told_unless_it_was_asked_for(inputs, tmp_path: Path):
    request = TrainRequest(target=inputs[0], rows=inputs[1], out=tmp_path / "d", device="cpu")
    few = replace(CONFIG, steps=None, batch_tokens=600)
    notes = plan_train(request, few, Silent()).resolved.notes
    assert any(note.startswith("the whole run is 2 optimiser steps, too few") for note in notes)
    assert not any("optimiser step" in note for note in plan_train(request, CONFIG, Silent()).resolved.notes)


def test_the_time_of_a_run_is_measured_on_a_step_that_changes_nothing(inputs, tmp_path: Path, monkeypatch):
    request = TrainRequest(target=inputs[0], rows=inputs[1], out=tmp_path / "d", device="cpu")
    config = replace(CONFIG, steps=60)
    plan = plan_train(request, config, Silent())
    target = Target.load(request.target, request.placement())
    trainer = live_trainer(
        starting_draft(request, config, plan, target.frozen, Silent()),
        target,
        config,
        lr=1e-3,
        num_steps=60,
    )
    before = [parameter.clone() for parameter in trainer.draft.parameters()]
    talk = Silent()

    say_time(plan, trainer, talk)

    assert all(torch.equal(*pair) for pair in zip(before, trainer.draft.parameters(), strict=True))
    monkeypatch.setattr(trainer, "time_step", lambda rows: 2.0)
    say_time(plan, trainer, talk)
    assert "time: about 2 min for 60 steps" in talk.lines[-1]
    plan = plan_train(request, CONFIG, Silent())
    say_time(plan, trainer, talk)
    assert "the progress line says" in talk.lines[-1]


def test_a_small_model_elsewhere_is_bound_by_its_steps_not_by_its_arithmetic(inputs, tmp_path: Path):
    request = TrainRequest(target=inputs[0], rows=inputs[1], out=tmp_path / "d", device="cpu")
    plan = plan_train(request, replace(CONFIG, steps=1000), Silent(), device_type="cuda")
    assert say_time_elsewhere(plan, CONFIG, Silent()) == pytest.approx(dict.fromkeys(("H200", "A100", "L40S"), 9.0))
