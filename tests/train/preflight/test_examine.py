"""What a run is told before it starts."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eyas.data.text.tokenise import TokenRow
from eyas.models.target import Target
from eyas.talk import Silent
from eyas.train.config import TrainConfig
from eyas.train.preflight.examine import examine, plan_train
from eyas.train.preflight.target_checks import TeacherWrong, check_teacher
from eyas.train.preflight.trial import duration
from eyas.train.request import TrainRequest
from eyas.train.rows.mask_statistics import mask_statistics
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
    check = check_teacher(Target(tiny_target(name, seed=1)), rows("0" * 40))
    assert check.num_tokens == 40
    assert check.same_argmax == 1.0
    assert check.largest_difference < 1e-4


def test_a_model_that_does_more_than_its_head_is_refused(monkeypatch):
    target = Target(tiny_target("llama", seed=1))
    monkeypatch.setattr(Target, "logits", lambda self, last: -torch.nn.functional.linear(last, self.parts.head))
    with pytest.raises(TeacherWrong, match="LlamaForCausalLM"):
        check_teacher(target, rows("0" * 40))


def test_all_of_it_is_said_and_nothing_is_written(inputs, tmp_path: Path):
    talk = Silent()
    request = TrainRequest(target=inputs[0], rows=inputs[1], out=tmp_path / "d", device="cpu")
    plan = plan_train(request, CONFIG, talk)
    document = examine(request, CONFIG, plan, talk).as_document()

    said = "\n".join(talk.lines)
    for words in ("draft vocabulary: 32", "mask: ", "RoPE of the draft: theta", "trained parameters", "MiB  target"):
        assert words in said
    assert "disk: " in said
    assert "teacher: the recomputed head has the model's own first choice at 100.0%" in said
    assert "measured on 2 trial steps: " in said
    assert any("eyas prepare" in note and "--regenerate" in note for note in talk.notes)
    assert document["trial"]["tokens_per_s"] > 0
    assert document["trial"]["seconds"] == pytest.approx(plan.num_tokens / document["trial"]["tokens_per_s"])
    assert (
        document["trial"]["peak_memory_bytes"] > plan.costs.memory_bytes["this process so far (python, torch)"] > 2**26
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
