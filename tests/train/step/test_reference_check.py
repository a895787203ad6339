"""Before training, the fused step is compared with the modules; what differs is refused, and what to do is said."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from byte_tokenizer import save_target_with
from eyas.data.text.tokenise import TokenRow
from eyas.models.draft_layer import DraftLayer
from eyas.models.placement import Placement
from eyas.models.target import LiveStates, Target
from eyas.talk import Silent
from eyas.train.config import TrainConfig
from eyas.train.preflight.examine import plan_train
from eyas.train.preflight.starting_draft import starting_draft
from eyas.train.request import TrainRequest
from eyas.train.run.train import train
from eyas.train.step import distributions, packed_target, reference_check
from eyas.train.step.distributions import DraftVocabulary, ReferenceDistributions, TritonDistributions
from eyas.train.step.reference_check import FusedStepDiffers, require_reference
from live_trainer import live_trainer
from tiny_draft import tiny_spec
from train_run_folder import make_run_folder

CONFIG = TrainConfig(steps=3, batch_tokens=150, draft_vocab_size=32, ttt_steps=3, lr=1e-3)
ROW = TokenRow(tuple(range(40, 70)), (True,) * 30)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_run_folder(tmp_path_factory.mktemp("inputs"))


def run(inputs: tuple[Path, Path], out: Path, **options: object) -> list[float]:
    request = TrainRequest(target=inputs[0], rows=inputs[1], out=out, device="cpu")
    config = TrainConfig(
        **{"steps": 3, "batch_tokens": 150, "draft_vocab_size": 32, "ttt_steps": 3, "lr": 1e-3, **options}
    )
    return [
        record["loss"] for record in train(request, config, plan_train(request, config, Silent()), Silent()).metrics
    ]


def test_a_change_of_the_draft_layer_that_training_does_not_make_is_refused(inputs, tmp_path: Path, monkeypatch):
    whole = DraftLayer.forward

    def changed(self, *args, **more):
        out = whole(self, *args, **more)
        return out + 0.1 * out.roll(1, -1)

    monkeypatch.setattr(DraftLayer, "forward", changed)
    with pytest.raises(FusedStepDiffers, match="the draft's state at unrolled step 0") as caught:
        run(inputs, tmp_path / "d")
    assert "src/eyas/train/step/unroll.py (FusedUnroll)" in caught.value.do
    assert "--unroll modules" in caught.value.do

    losses = run(inputs, tmp_path / "d", unroll="modules")
    monkeypatch.undo()
    assert losses != pytest.approx(run(inputs, tmp_path / "plain"), rel=1e-4), "the change is trained"


def test_a_change_of_the_fused_target_is_refused(inputs, tmp_path: Path, monkeypatch):
    whole = packed_target.LlamaStates._block

    def wrong(self, block, state, normed, packed):
        state, change = whole(self, block, state, normed, packed)
        return state, change * 1.1

    monkeypatch.setattr(packed_target.LlamaStates, "_block", wrong)
    with pytest.raises(FusedStepDiffers, match="the target's aux states") as caught:
        run(inputs, tmp_path / "d")
    assert "packed_target.py (LlamaStates)" in caught.value.do


def test_a_wrong_gradient_is_refused_though_all_states_are_right(inputs, tmp_path: Path, monkeypatch):
    whole = reference_check.FusedUnroll.publish

    def spoilt(self):
        whole(self)
        self._draft.fc.weight.grad *= 1.1

    monkeypatch.setattr(reference_check.FusedUnroll, "publish", spoilt)
    with pytest.raises(FusedStepDiffers, match=r"the gradient of fc\.weight"):
        run(inputs, tmp_path / "d")


def test_the_comparison_leaves_nothing_behind_and_the_modules_train_to_the_same_losses(inputs, tmp_path: Path):
    request = TrainRequest(target=inputs[0], rows=inputs[1], out=tmp_path / "d", device="cpu")
    plan = plan_train(request, CONFIG, Silent())
    target = Target.load(request.target, request.placement())
    draft = starting_draft(request, CONFIG, plan, target.frozen, Silent())
    trainer = live_trainer(draft, target, CONFIG, lr=1e-3, num_steps=3)
    before = {name: parameter.clone() for name, parameter in draft.named_parameters()}

    difference = trainer.require_reference(ROW)

    assert difference is not None
    assert difference < 1e-5
    assert all(torch.equal(before[name], parameter) for name, parameter in draft.named_parameters())
    assert all(parameter.grad is None for parameter in draft.parameters())
    assert run(inputs, tmp_path / "fused") == pytest.approx(
        run(inputs, tmp_path / "modules", unroll="modules"), rel=1e-4
    )


def half_target(path: Path) -> Target:
    """Thirty layers of random weights: at the last one, bf16 states of two right paths differ by a fifth."""
    target = save_target_with(path / "deep", num_hidden_layers=30)
    return Target.load(target, Placement(torch.bfloat16, torch.device("cpu")))


def test_rounding_through_many_layers_of_halves_is_not_taken_for_a_difference(tmp_path: Path, monkeypatch):
    target = half_target(tmp_path)
    states = packed_target.live_states(target, 64)
    assert isinstance(states, packed_target.LlamaStates)
    spec = tiny_spec(
        target_hidden_size=32, vocab_size=target.vocab_size, embedding="target", aux_boundaries=(2, 15, 27)
    )
    draft = reference_check.Eagle3Draft(spec, target_embedding=target.parts.embedding.float())
    difference = require_reference(draft, states, ROW, 2, LiveStates(target))
    assert difference is not None
    assert difference < 0.05
    whole = packed_target.LlamaStates._block
    monkeypatch.setattr(states, "_block", lambda block, *rest: tuple(1.3 * x for x in whole(states, block, *rest)))
    with pytest.raises(FusedStepDiffers, match="the target's aux states"):
        require_reference(draft, states, ROW, 2, LiveStates(target))


def test_what_is_not_fused_has_nothing_to_compare(inputs):
    target = Target.load(inputs[0], TrainRequest(target=inputs[0], rows=inputs[1], out=inputs[0]).placement())
    spec = tiny_spec(qk_norm=True, model_type="qwen3")
    draft = reference_check.Eagle3Draft(spec, target_embedding=target.parts.embedding, target_head=target.parts.head)
    assert require_reference(draft, LiveStates(target), ROW, 2, LiveStates(target)) is None


def test_a_loss_without_a_kernel_is_computed_by_the_reference_on_a_gpu(monkeypatch):
    def squared(logits, log_probs, log_mass, argmax):
        return (logits - log_probs).square().sum(-1)

    monkeypatch.setitem(distributions.LOSSES, "squared", squared)
    torch.manual_seed(0)
    vocabulary = DraftVocabulary(offered=None, draft_ids=torch.arange(5))
    teacher = ReferenceDistributions().reduce(torch.randn(4, 5), vocabulary)
    logits, weights = torch.randn(8, 5), torch.ones(8)
    kernels = object.__new__(TritonDistributions)  # its kernels are not needed, and need a GPU

    found = kernels.losses(logits.clone(), teacher, weights, "squared")

    wanted = 2 * (logits - teacher.log_probs.repeat(2, 1))
    assert torch.allclose(found.grad, wanted)
    assert torch.equal(found.drafted, logits.argmax(-1))
    assert F.mse_loss(found.losses, (logits - teacher.log_probs.repeat(2, 1)).square().sum(-1)) < 1e-10
