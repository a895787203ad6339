"""On a GPU a step is launched without the host waiting for it; torch itself is told to refuse any wait."""

import pytest
import torch

from eyas.data.text.tokenise import TokenRow
from eyas.models.draft import Eagle3Draft
from eyas.models.target import Target
from eyas.train.config import TrainConfig
from eyas.train.optimise.step_outcome import read_steps
from eyas.train.optimise.trainer import Trainer
from eyas.train.preflight.starting_draft import initialise
from live_trainer import live_trainer
from tiny_draft import tiny_spec
from tiny_target import tiny_target

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
WIDTH = 256
SIZES = {
    "hidden_size": WIDTH,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
}


def trainer_on_gpu() -> Trainer:
    model = tiny_target("llama", seed=3, **SIZES)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(0.1)
    target = Target(model.to("cuda", torch.bfloat16))
    spec = tiny_spec(
        hidden_size=WIDTH,
        target_hidden_size=WIDTH,
        intermediate_size=512,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        vocab_size=1024,
        draft_vocab_size=1024,
        embedding="target",
        aux_boundaries=(1, 2, 3),
    )
    draft = Eagle3Draft(spec, target_embedding=target.parts.embedding).to("cuda")
    initialise(draft, target.frozen, seed=0)
    return live_trainer(draft.train(), target, TrainConfig(ttt_steps=3), lr=1e-4, num_steps=10)


def rows() -> list[TokenRow]:
    generator = torch.Generator().manual_seed(0)
    return [
        TokenRow(
            tuple(torch.randint(3, 1000, (length,), generator=generator).tolist()),
            tuple(i > 10 for i in range(length)),
        )
        for length in (200, 120, 333)
    ]


def test_no_part_of_a_step_waits_for_the_device():
    trainer = trainer_on_gpu()
    trainer.train_step(rows(), 0)  # compiles kernels, allocates, makes the optimiser's state
    pending = []
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in (1, 2, 3):
            pending.append(trainer.start_step(rows(), step))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    outcomes, error = read_steps(pending)
    assert error is None
    assert len(outcomes) == 3
    assert outcomes[2].loss < outcomes[0].loss


def test_a_nan_freezes_weights_and_moments_on_the_device():
    trainer = trainer_on_gpu()
    trainer.train_step(rows(), 0)
    before = {name: p.detach().clone() for name, p in trainer.draft.named_parameters()}
    poison = trainer.draft.norm.weight.register_hook(lambda grad: grad * float("nan"))
    pending = [trainer.start_step(rows(), 1)]
    poison.remove()
    pending.append(trainer.start_step(rows(), 2))
    outcomes, error = read_steps(pending)
    assert outcomes == []
    assert "norm.weight" in str(error)
    assert all(torch.equal(p, before[name]) for name, p in trainer.draft.named_parameters())
