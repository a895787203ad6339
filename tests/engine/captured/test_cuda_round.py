"""The captured round computes what the reference round computes, token for token (by torch operators, fp32)."""

from dataclasses import replace

import pytest
import torch

from eyas.decode.chain import SampledRule
from eyas.decode.sampling import Sampling
from eyas.engine.adaptive import AdaptiveDepth, AdaptiveSettings
from eyas.engine.captured.captured_engine import CacheTooShort, FastEngine, FastSettings
from eyas.engine.captured.captured_round import new_round
from eyas.engine.captured.captured_weights import fast_draft, fast_target
from eyas.engine.captured.open_captured import open_captured, open_path
from eyas.engine.captured.round_ops import ReferenceOps
from eyas.engine.cost_table import CostTable
from eyas.engine.cuda_graphs import FastPathUnsupported, why_not_captured
from eyas.engine.eagle_draft import ReferenceDraft
from eyas.engine.engine import Engine, Limits, PromptEmpty
from eyas.engine.llama.llama_target import LlamaTarget
from eyas.engine.llama.llama_weights import LlamaWeights
from eyas.talk import Silent
from tiny_captured import BOUNDARIES, HEADS, KV_HEADS, WIDTH, on_gpu, tiny_module, tiny_weights

PROMPT = [3, 1, 2, 4]


def captured(num_draft_tokens: int, settings: FastSettings | None = None, max_length: int = 128) -> FastEngine:
    weights = tiny_weights()
    return open_captured(
        weights,
        tiny_module(weights),
        aux_boundaries=BOUNDARIES,
        num_draft_tokens=num_draft_tokens,
        max_length=max_length,
        settings=settings,
    )


def reference() -> Engine:
    weights = tiny_weights()
    return Engine(LlamaTarget(weights), ReferenceDraft(tiny_module(weights), BOUNDARIES))


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 3, 7])
@pytest.mark.parametrize("prompt", [PROMPT, [2], [0, 0, 4, 4, 1, 2, 3]])
def test_ids_origins_and_acceptances_are_the_reference_rounds(prompt: list[int], num_draft_tokens: int):
    limits = Limits(max_new_tokens=40)

    expected = reference().generate(prompt, limits, num_draft_tokens=num_draft_tokens)
    got = captured(num_draft_tokens).generate(prompt, limits)

    assert got.ids == expected.ids
    assert got.origins == expected.origins
    assert got.accepted == expected.accepted
    assert got.finish == expected.finish


def test_the_comparison_covers_rounds_with_and_without_accepted_drafts():
    accepted = captured(3).generate(PROMPT, Limits(max_new_tokens=40)).accepted

    assert 0 in accepted
    assert max(accepted) >= 2, "no round kept two drafts: the repair of the caches is not tested"


def test_a_draft_of_other_weights_proposes_otherwise_but_the_text_stays():
    weights, limits = tiny_weights(), Limits(max_new_tokens=40)
    target = fast_target(weights, max_length=128, aux_boundaries=BOUNDARIES)
    texts = []
    for seed in (1, 2):
        draft = fast_draft(tiny_module(weights, seed), target)
        round_ = new_round(ReferenceOps(), target, draft, num_draft_tokens=3, max_length=128)
        texts.append(FastEngine(round_).generate(PROMPT, limits))

    assert texts[0].ids == texts[1].ids
    assert texts[0].accepted != texts[1].accepted


@pytest.mark.parametrize("settings", [FastSettings(lookahead=1), FastSettings(rounds_per_launch=4, lookahead=3)])
def test_launching_ahead_changes_nothing_not_even_for_the_next_prompt(settings: FastSettings):
    engine, limits = captured(3, settings), Limits(max_new_tokens=30)

    first, other, again = (engine.generate(p, limits) for p in (PROMPT, [2, 2, 1], PROMPT))

    assert first.ids == again.ids == reference().generate(PROMPT, limits, num_draft_tokens=3).ids
    assert other.ids == reference().generate([2, 2, 1], limits, num_draft_tokens=3).ids


def test_more_rounds_than_records_still_come_in_order():
    limits = Limits(max_new_tokens=150)

    got = captured(0, max_length=192).generate(PROMPT, limits)

    assert got.ids == reference().generate(PROMPT, limits).ids


@pytest.mark.parametrize("num_draft_tokens", [0, 3])
def test_a_stop_id_ends_the_text_inside_a_round(num_draft_tokens: int):
    free = reference().generate(PROMPT, Limits(max_new_tokens=30))
    stop = free.ids[-1]
    limits = Limits(max_new_tokens=30, stop_ids=frozenset([stop]))

    got = captured(num_draft_tokens).generate(PROMPT, limits)
    expected = reference().generate(PROMPT, limits, num_draft_tokens=num_draft_tokens)

    assert (got.ids, got.accepted, got.finish) == (expected.ids, expected.accepted, "stop")


def test_tokens_are_told_as_they_come():
    told: list[tuple[int, ...]] = []

    text = captured(3).generate(PROMPT, Limits(max_new_tokens=20), on_tokens=lambda ids: told.append(tuple(ids)))

    assert [i for ids in told for i in ids] == text.ids
    assert len(told) == len(text.accepted) + 1


def test_simulated_acceptances_are_taken_as_given():
    weights = tiny_weights()
    target = fast_target(weights, max_length=64, aux_boundaries=BOUNDARIES)
    draft = fast_draft(tiny_module(weights), target)
    round_ = new_round(ReferenceOps(), target, draft, num_draft_tokens=3, max_length=64, is_simulated=True)
    round_.state.simulated[:4] = torch.tensor([3, 0, 2, 1])
    engine = FastEngine(round_)
    engine.start(PROMPT)
    records = engine.rounds()

    assert [next(records)[0] for _ in range(4)] == [3, 0, 2, 1]


def test_what_does_not_fit_the_cache_is_refused_before_it_runs():
    with pytest.raises(CacheTooShort) as caught:
        captured(3, max_length=64).generate(PROMPT, Limits(max_new_tokens=60))

    assert str(caught.value).splitlines()[0] == (
        "error[cache-too-short]: the cache holds 64 positions and 80 are needed"
    )


def test_an_answer_that_just_fits_is_given():
    assert len(captured(3, max_length=64).generate(PROMPT, Limits(max_new_tokens=44)).ids) == 44


def test_an_empty_prompt_is_refused():
    with pytest.raises(PromptEmpty):
        captured(0).generate([], Limits(max_new_tokens=3))


@pytest.mark.parametrize(
    ("switch", "value"),
    [("residual", "post-norm"), ("feedback", "post-norm"), ("aux_norm", "per-state"), ("num_layers", 2)],
)
def test_a_switch_that_the_round_does_not_compute_is_refused_by_name(switch: str, value: object):
    weights = tiny_weights()
    target = fast_target(weights, max_length=64, aux_boundaries=BOUNDARIES)

    with pytest.raises(FastPathUnsupported, match=switch):
        fast_draft(tiny_module(weights, **{switch: value}), target)


def qwen(family: str) -> LlamaWeights:
    draw = torch.Generator().manual_seed(3)
    if family == "qwen2":
        return tiny_weights(qkv_bias=torch.randn((HEADS + 2 * KV_HEADS) * WIDTH, generator=draw))
    return tiny_weights(q_norm=torch.rand(WIDTH, generator=draw) + 0.5, k_norm=torch.rand(WIDTH, generator=draw) + 0.5)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_targets_with_biases_or_head_norms_give_the_reference_rounds_text(family: str):
    weights, limits = qwen(family), Limits(max_new_tokens=40)
    draft = tiny_module(weights)

    for k in (0, 3):
        got = open_captured(weights, draft, aux_boundaries=BOUNDARIES, num_draft_tokens=k, max_length=128).generate(
            PROMPT, limits
        )
        reference = Engine(LlamaTarget(weights), ReferenceDraft(draft, BOUNDARIES))
        expected = reference.generate(PROMPT, limits, num_draft_tokens=k)

        assert (got.ids, got.accepted) == (expected.ids, expected.accepted)
    assert expected.ids != Engine(LlamaTarget(tiny_weights())).generate(PROMPT, limits).ids, "the extras do nothing"


def test_a_sliding_window_is_refused():
    weights = tiny_weights()

    with pytest.raises(FastPathUnsupported, match="a sliding window"):
        fast_target(replace(weights, shape=replace(weights.shape, window=8)), max_length=64)


@pytest.mark.parametrize("boundaries", [(0, 2, 3), (1, 2, 2)])
def test_the_embedding_and_a_state_asked_for_twice_are_no_boundaries_of_the_captured_round(boundaries):
    with pytest.raises(FastPathUnsupported, match="aux boundaries"):
        fast_target(tiny_weights(), max_length=64, aux_boundaries=boundaries)


def test_heads_whose_width_is_no_power_of_two_are_refused_and_not_met_by_a_kernel():
    """As of h2o-danube: 80."""
    weights = tiny_weights()
    target = fast_target(weights, max_length=64, aux_boundaries=BOUNDARIES)

    with pytest.raises(FastPathUnsupported, match="heads of 80 numbers"):
        fast_target(replace(weights, shape=replace(weights.shape, head_dim=80, rotary_dim=80)), max_length=64)
    with pytest.raises(FastPathUnsupported, match="head_dim = 24"):
        fast_draft(tiny_module(weights, head_dim=24), target)


def test_a_cpu_has_no_graphs_and_says_so():
    assert why_not_captured(torch.device("cpu")) == "cpu has no CUDA graphs"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("num_draft_tokens", [0, 3, 5])
def test_the_graph_replays_the_reference_round_in_fp32(num_draft_tokens: int):
    weights = on_gpu(tiny_weights())
    draft = tiny_module(weights).to("cuda") if num_draft_tokens else None
    engine = open_captured(weights, draft, aux_boundaries=BOUNDARIES, num_draft_tokens=num_draft_tokens, max_length=256)
    limits = Limits(max_new_tokens=100)

    got = engine.generate(PROMPT, limits)

    assert got.ids == reference().generate(PROMPT, limits, num_draft_tokens=num_draft_tokens).ids


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_graphs_of_changing_depth_give_the_reference_rounds_text_in_fp32():
    weights, limits, talk = on_gpu(tiny_weights()), Limits(max_new_tokens=200), Silent()
    draft = tiny_module(weights).to("cuda")
    fast = open_path(weights, draft, BOUNDARIES, "auto", talk)
    assert fast is not None, talk.notes
    costs = CostTable(round_s=(1.0, 1.15, 1.2, 1.25))
    adaptive = AdaptiveDepth(costs, AdaptiveSettings(first_wait=9, budget=1.0, trial=3, window=6))
    engine = Engine(LlamaTarget(weights), ReferenceDraft(draft, BOUNDARIES), fast=fast)

    texts = [engine.generate(PROMPT, limits, adaptive=adaptive) for _ in range(2)]

    expected = reference().generate(PROMPT, limits).ids
    assert texts[0].ids == texts[1].ids == expected
    assert len({*texts[0].drafted, *texts[1].drafted}) > 1, "one depth only: nothing adapted"
    assert engine.generate(PROMPT, limits, num_draft_tokens=3).ids == expected
    measured = engine.adaptive(PROMPT, most=3).costs.round_s
    assert 0 < measured[0] <= measured[3]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("num_draft_tokens", [0, 3])
def test_captured_sampled_texts_are_the_reference_ones_in_fp32(num_draft_tokens: int):
    weights, limits = on_gpu(tiny_weights()), Limits(max_new_tokens=60)
    draft = tiny_module(weights).to("cuda")
    fast = open_path(weights, draft, BOUNDARIES, "auto", Silent())
    engine = Engine(LlamaTarget(weights), ReferenceDraft(draft, BOUNDARIES), fast=fast)

    for seed in range(3):
        sampling = Sampling(temperature=0.8, top_p=0.9, seed=seed)
        got = engine.generate(PROMPT, limits, num_draft_tokens=num_draft_tokens, rule=SampledRule(sampling))
        expected = reference().generate(PROMPT, limits, num_draft_tokens=num_draft_tokens, rule=SampledRule(sampling))

        assert (got.ids, got.accepted) == (expected.ids, expected.accepted)
