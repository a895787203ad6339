"""Speculation in batches: each text and count is that of the single-stream engine, whoever else is in the batch."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from eyas.decode.chain import rule_for
from eyas.decode.sampling import Sampling
from eyas.engine.batches.batch_draft import BatchDraft
from eyas.engine.batches.batch_llama import BatchLlama
from eyas.engine.batches.batch_ops import BatchOps
from eyas.engine.batches.batch_round import BatchSpeculation
from eyas.engine.batches.batch_runner import BatchRunner, Pace, captured_pace
from eyas.engine.batches.generator import BatchGenerator, Completion, Request
from eyas.engine.cuda_graphs import FastPathUnsupported
from eyas.engine.eagle_draft import FusedDraft
from eyas.engine.engine import Engine, Limits
from eyas.engine.llama.llama_target import LlamaTarget
from eyas.engine.llama.llama_weights import LlamaWeights, fuse_llama
from eyas.models.draft import Eagle3Draft
from eyas.talk import Silent
from tiny_draft import SWITCHES, tiny_draft
from tiny_target import tiny_target

VOCAB, BOUNDARIES = 9, (1, 2, 4)
PACES = {
    "round by round": Pace(),
    "blocks read late": Pace(steps=3, lookahead=1, sizes=(1, 2, 4)),
    "prompts in pieces": Pace(steps=2, lookahead=1, sizes=(1, 2, 4), piece_sizes=(2, 4)),
}


def tiny_weights() -> LlamaWeights:
    model = tiny_target("llama", vocab_size=VOCAB)
    return fuse_llama(model.config.to_dict(), model.state_dict().get)


def draft_of(name: str) -> Eagle3Draft:
    sizes = {"target_hidden_size": 32, "vocab_size": VOCAB, "draft_vocab_size": 7, "aux_boundaries": BOUNDARIES}
    if "draft_vocab_size" in SWITCHES[name]:
        sizes["draft_vocab_size"] = VOCAB
    return tiny_draft(**{**SWITCHES[name], **sizes}).eval()


def requests(num: int) -> list[Request]:
    """Greedy and sampled ones; few different tokens, so that a random draft is right now and then."""
    chance = random.Random(3)
    samplings = [Sampling(), Sampling(temperature=0.7, seed=1), Sampling(temperature=1.0, top_k=4, top_p=0.9, seed=2)]
    return [
        Request(
            id=f"r{i}",
            prompt_ids=tuple(chance.randrange(VOCAB) for _ in range(chance.randint(1, 35))),
            max_new_tokens=chance.randint(1, 24),
            sampling=replace(samplings[i % 3], seed=i),
            stop_ids=frozenset({7}),
        )
        for i in range(num)
    ]


def run(
    weights: LlamaWeights,
    draft: Eagle3Draft,
    asked: Sequence[Request],
    *,
    num_draft_tokens: int,
    num_slots: int = 4,
    pace: Pace | None = None,
    ops: BatchOps | None = None,
) -> dict[str, Completion]:
    model = BatchLlama(weights, num_slots, 64, ops)
    speculation = BatchSpeculation(BatchDraft(draft, num_slots, 64, ops), BOUNDARIES, num_draft_tokens, model)
    generator = BatchGenerator(BatchRunner(model, pace, speculation), lambda ids: "", max_prefill_tokens=40)
    return {c.id: c for c in generator.run(asked, Silent())}


def alone(
    weights: LlamaWeights, draft: Eagle3Draft, asked: Sequence[Request], num_draft_tokens: int
) -> dict[str, Completion]:
    engine, texts = Engine(LlamaTarget(weights), FusedDraft(draft, BOUNDARIES)), {}
    for request in asked:
        text = engine.generate(
            request.prompt_ids,
            Limits(max_new_tokens=request.max_new_tokens, stop_ids=request.stop_ids),
            num_draft_tokens=num_draft_tokens,
            rule=rule_for(request.sampling),
        )
        texts[request.id] = Completion(
            id=request.id, ids=tuple(text.ids), finish=text.finish, accepted=tuple(text.accepted)
        )
    return texts


@pytest.mark.parametrize("pace", PACES.values(), ids=PACES.keys())
@pytest.mark.parametrize("num_draft_tokens", [1, 3, 5])
def test_texts_and_counts_are_those_of_the_single_stream_engine(num_draft_tokens: int, pace: Pace):
    weights, draft, asked = tiny_weights(), draft_of("eagle-3"), requests(18)

    found = run(weights, draft, asked, num_draft_tokens=num_draft_tokens, pace=pace)

    assert found == alone(weights, draft, asked, num_draft_tokens)
    counts = [a for c in found.values() for a in c.accepted]
    assert min(counts) == 0 < max(counts), "the workload must show drafts accepted and rejected"
    assert {c.finish for c in found.values()} == {"stop", "length"}


@pytest.mark.parametrize("num_draft_tokens", [1, 4])
def test_texts_are_those_of_plain_decoding(num_draft_tokens: int):
    weights, draft, asked = tiny_weights(), draft_of("eagle-3"), requests(12)

    found = run(weights, draft, asked, num_draft_tokens=num_draft_tokens)

    plain = BatchGenerator(BatchRunner(BatchLlama(weights, 4, 64)), lambda ids: "")
    assert {i: c.ids for i, c in found.items()} == {c.id: c.ids for c in plain.run(asked, Silent())}


@pytest.mark.parametrize(
    "name", ["post-norm residual", "norm over concat", "norm per state", "post-norm feedback", "q/k norm", "two layers",
             "full vocabulary", "llama3 rope"]
)  # fmt: skip
def test_every_draft_of_the_fused_path_speculates(name: str):
    weights, draft, asked = tiny_weights(), draft_of(name), requests(8)

    assert run(weights, draft, asked, num_draft_tokens=3) == alone(weights, draft, asked, 3)


@pytest.mark.parametrize("name", ["latent attention", "sliding window", "partial rope"])
def test_other_drafts_are_refused(name: str):
    with pytest.raises(FastPathUnsupported, match="speculate in batches"):
        BatchDraft(draft_of(name), 2, 64)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("num_draft_tokens", [1, 3])
def test_captured_rounds_write_what_the_single_stream_engine_writes(num_draft_tokens: int):
    from eyas.engine.batches.triton_batch_ops import TritonBatchOps

    model = tiny_target("llama", vocab_size=VOCAB).to("cuda")
    weights = fuse_llama(model.config.to_dict(), model.state_dict().get)
    draft, asked = draft_of("eagle-3"), requests(18)

    found = run(
        weights,
        draft_of("eagle-3").to("cuda"),
        asked,
        num_draft_tokens=num_draft_tokens,
        num_slots=8,
        pace=captured_pace(8, steps=2),
        ops=TritonBatchOps(),
    )

    assert found == alone(tiny_weights(), draft, asked, num_draft_tokens)
