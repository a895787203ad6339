import torch

from eyas.data.text.tokenise import TokenRow
from eyas.models.draft import Eagle3Draft
from eyas.models.target import Target
from eyas.train.config import TrainConfig
from eyas.train.optimise.trainer import Trainer
from eyas.train.preflight.starting_draft import initialise
from eyas.train.run.run_steps import find_not_finite
from live_trainer import live_trainer
from tiny_draft import tiny_spec
from tiny_target import tiny_target

ROWS = [TokenRow(tuple(range(3, 13)), (True,) * 10)]


def tiny() -> Trainer:
    target = Target(tiny_target("llama", seed=3))
    spec = tiny_spec(
        target_hidden_size=32, vocab_size=64, draft_vocab_size=64, embedding="target", aux_boundaries=(1, 2, 3)
    )
    draft = Eagle3Draft(spec, target_embedding=target.parts.embedding)
    initialise(draft, target.frozen, seed=0)
    return live_trainer(draft, target, TrainConfig(ttt_steps=2), lr=1e-3, num_steps=1)


def test_a_target_that_overflows_is_told_by_its_first_bad_boundary():
    trainer = tiny()
    with torch.no_grad():
        trainer.teaching.plain._target.parts.layers[1].mlp.down_proj.weight.fill_(float("inf"))
    assert "the target's state at boundary 2 is not finite in row 1 of the step's 1" in find_not_finite(trainer, ROWS)


def test_a_bad_weight_of_the_draft_is_named():
    trainer = tiny()
    with torch.no_grad():
        trainer.draft.fc.weight[0, 0] = float("nan")
    assert find_not_finite(trainer, ROWS) == "weights of the draft are not finite: fc.weight"


def test_what_arises_in_the_draft_alone_is_said_to():
    assert "the draft's own computation" in find_not_finite(tiny(), ROWS)
