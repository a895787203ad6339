"""A step whose micro-batches are recorded once a shape, against the step that computes each anew."""

from collections.abc import Callable
from dataclasses import fields

import pytest
import torch

from eyas.data.text.tokenise import TokenRow
from eyas.models.draft import Eagle3Draft
from eyas.models.target import Target
from eyas.train.config import TrainConfig
from eyas.train.optimise.trainer import Trainer
from eyas.train.preflight.starting_draft import initialise
from eyas.train.step.captured import CudaGraphs, Recorder, run_again
from live_trainer import live_trainer
from tiny_draft import tiny_spec
from tiny_target import tiny_target

CONFIG = TrainConfig(ttt_steps=3, micro_batch_tokens=2048, loss="kl")


V = 64


def rows_of(*lengths: int, seed: int = 0) -> list[TokenRow]:
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(3, 40, (n,), generator=generator).tolist() for n in lengths]
    return [TokenRow(tuple(row), tuple(i >= len(row) // 3 for i in range(len(row)))) for row in ids]


BATCHES = [
    rows_of(13, 6, 3, 21, seed=0),
    rows_of(*[60] * 8, seed=1),
    rows_of(5, 40, seed=2),
    rows_of(*[700] * 4, seed=3),  # two micro-batches
    rows_of(13, 6, 30, seed=4),
]


class Counting:
    """`run_again`, counted."""

    def __init__(self) -> None:
        self.num_recorded = self.num_replayed = 0

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        self.num_recorded += 1
        again = run_again(work)

        def replay() -> None:
            self.num_replayed += 1
            again()

        return replay


def trainer(record: Recorder | None, **changes: object) -> Trainer:
    target = Target(tiny_target("llama", seed=3))
    sizes = {"target_hidden_size": 32, "vocab_size": V, "draft_vocab_size": 24, "embedding": "target"}
    spec = tiny_spec(**{**sizes, "aux_boundaries": (1, 2, 3), **changes})
    draft = Eagle3Draft(spec, target_embedding=target.parts.embedding)
    draft.set_vocab_map(torch.arange(0, V, 2)[:24])
    initialise(draft, target.frozen, seed=0)
    return live_trainer(draft, target, CONFIG, lr=5e-3, num_steps=len(BATCHES), record=record)


@pytest.mark.parametrize("feedback", ["pre-norm", "post-norm"])
def test_a_recorded_step_gives_the_losses_counts_and_weights_of_a_computed_one(feedback: str):
    record = Counting()
    computed, recorded = trainer(None, feedback=feedback), trainer(record, feedback=feedback)

    for step, batch in enumerate(BATCHES):
        one, two = (t.train_step(batch, step) for t in (computed, recorded))
        assert two.loss == pytest.approx(one.loss, rel=1e-5)
        assert two.grad_norm == pytest.approx(one.grad_norm, rel=1e-4)
        for field in fields(one.counts):
            assert getattr(two.counts, field.name).tolist() == pytest.approx(getattr(one.counts, field.name).tolist())

    for one, two in zip(computed.draft.parameters(), recorded.draft.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-4)
    # the first, third and last batch have one shape; the fourth is two micro-batches of one shape
    assert (record.num_recorded, record.num_replayed) == (3, 6)


def test_rows_without_a_target_add_nothing_to_a_recorded_step():
    recorded = trainer(run_again)
    silent = [TokenRow(row.token_ids, (False,) * len(row.token_ids)) for row in rows_of(9, 12)]
    outcome = recorded.train_step(silent, 0)
    assert outcome.loss == 0.0
    assert outcome.counts.num_targets.tolist() == [0, 0, 0]


def test_shapes_beyond_the_most_are_computed_without_a_record(monkeypatch):
    monkeypatch.setattr("eyas.train.step.captured._MOST_SHAPES", 1)
    record = Counting()
    computed, recorded = trainer(None), trainer(record)
    for step, batch in enumerate(BATCHES):
        wanted = computed.train_step(batch, step).loss
        assert recorded.train_step(batch, step).loss == pytest.approx(wanted, rel=1e-5)
    assert record.num_recorded == 1


def test_a_draft_through_its_modules_is_not_recorded_and_why_is_said():
    found = trainer(run_again, qk_norm=True, model_type="qwen3")
    assert found.why_not_captured == "the draft is computed by its modules"
    assert found.train_step(BATCHES[0], 0).loss > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_cuda_graph_gives_the_losses_of_a_computed_step():
    computed, recorded = (gpu_trainer(is_recorded) for is_recorded in (False, True))
    for step, batch in enumerate(BATCHES * 2):
        one, two = (t.train_step(batch, step) for t in (computed, recorded))
        assert two.loss == pytest.approx(one.loss, rel=2e-2), step
        assert two.counts.num_targets.tolist() == one.counts.num_targets.tolist()


def gpu_trainer(is_recorded: bool) -> Trainer:
    sizes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048}
    model = tiny_target("llama", seed=3, **sizes, **heads, vocab_size=V)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(0.1)
    target = Target(model.to("cuda", torch.bfloat16))
    draft_sizes = {**sizes, "num_heads": 4, "num_kv_heads": 2, "target_hidden_size": 256, "vocab_size": V}
    spec = tiny_spec(**draft_sizes, draft_vocab_size=V, embedding="target", aux_boundaries=(1, 2, 3))
    draft = Eagle3Draft(spec, target_embedding=target.parts.embedding).to("cuda")
    initialise(draft, target.frozen, seed=0)
    record = CudaGraphs(target.device) if is_recorded else None
    return live_trainer(draft.train(), target, CONFIG, lr=1e-4, num_steps=10, record=record)
