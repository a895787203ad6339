"""Requests through the captured rounds are answered as by the reference rounds (here by torch operators, fp32)."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eyas.decode.chain import SampledRule
from eyas.decode.sampling import Sampling
from eyas.engine.adaptive import AdaptiveDepth, AdaptiveSettings
from eyas.engine.captured.open_captured import open_path
from eyas.engine.cost_table import CostTable
from eyas.engine.eagle_draft import ReferenceDraft
from eyas.engine.engine import Engine, Limits
from eyas.engine.llama.llama_target import LlamaTarget
from eyas.engine.llama.llama_weights import LlamaWeights
from eyas.talk import Silent
from tiny_captured import BOUNDARIES, VOCAB, tiny_module, tiny_weights

PROMPT = [3, 1, 2, 4]
WEIGHTS = tiny_weights()


def engine(weights: LlamaWeights = WEIGHTS, talk: Silent | None = None, **changes: object) -> Engine:
    draft = tiny_module(weights, **changes)
    fast = open_path(weights, draft, BOUNDARIES, "uncaptured", talk or Silent())
    return Engine(LlamaTarget(weights), ReferenceDraft(draft, BOUNDARIES), fast=fast)


def reference() -> Engine:
    return Engine(LlamaTarget(WEIGHTS), ReferenceDraft(tiny_module(WEIGHTS), BOUNDARIES))


@pytest.fixture(scope="module")
def fast_engine() -> Engine:
    return engine()


def test_every_depth_gives_the_reference_rounds_ids_and_counts(fast_engine: Engine):
    limits = Limits(max_new_tokens=60)
    for k in (0, 1, 4, 7):
        got = fast_engine.generate(PROMPT, limits, num_draft_tokens=k)
        expected = reference().generate(PROMPT, limits, num_draft_tokens=k)

        assert (got.ids, got.accepted, got.origins) == (expected.ids, expected.accepted, expected.origins), f"K = {k}"


@settings(max_examples=15, deadline=None)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12),
    steps=st.lists(st.floats(0.0, 0.5), min_size=3, max_size=3),
    wait=st.integers(1, 20),
)
def test_adaptive_texts_are_plain_texts_whatever_rounds_cost(prompt: list[int], steps: list[float], wait: int):
    limits = Limits(max_new_tokens=60)
    costs = CostTable(round_s=(1.0, *(1.0 + sum(steps[: i + 1]) for i in range(3))))
    adaptive = AdaptiveDepth(costs, AdaptiveSettings(first_wait=wait, budget=1.0, trial=3, window=6))

    got = engine().generate(prompt, limits, adaptive=adaptive)

    assert got.ids == reference().generate(prompt, limits).ids
    assert got.acceptance.rounds == len(got.drafted)


def test_the_draft_catches_up_and_is_accepted_as_if_it_had_never_been_off():
    """Rounds 8 … are drafted after 8 plain steps; what they accept is what a draft accepts that read all along."""

    class OffThenOn(AdaptiveDepth):
        num_asked = 0

        def best_now(self) -> int:
            self.num_asked += 1
            return 0 if self.num_asked <= 8 else 3

        def most_now(self) -> int:
            return self.best_now()

    costs = CostTable(round_s=(1.0, 1.0, 1.0, 1.0))
    limits = Limits(max_new_tokens=40)

    got = engine().generate(PROMPT, limits, adaptive=OffThenOn(costs))
    plain = reference().generate(PROMPT, limits)
    later = reference().generate([*PROMPT, *plain.ids[:8]], Limits(max_new_tokens=32), num_draft_tokens=3)

    assert got.ids == plain.ids
    assert got.drafted[:8] == [0] * 8
    assert got.accepted[8:] == later.accepted
    assert max(later.accepted) > 0, "nothing is accepted: the comparison says nothing"


def test_a_request_that_does_not_fit_makes_longer_caches_and_says_so():
    talk = Silent()
    limits = Limits(max_new_tokens=3)
    prompt = [i % VOCAB for i in range(1000)]

    got = engine(talk=talk).generate(prompt, limits, num_draft_tokens=2)

    assert got.ids == reference().generate(prompt, limits).ids
    assert talk.notes == ["captured rounds are rebuilt for 2048 positions"]


@settings(max_examples=20, deadline=None)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30),
    sampling=st.builds(
        Sampling,
        temperature=st.sampled_from([0.4, 1.0, 1.7]),
        top_k=st.integers(0, 4),
        top_p=st.sampled_from([1.0, 0.8]),
        min_p=st.sampled_from([0.0, 0.2]),
        seed=st.integers(0, 99),
    ),
    depth=st.sampled_from([0, 1, 3, 7]),
    stop=st.integers(0, 2 * VOCAB),
)
# Its last round runs past the limit by two tokens: the numbers of those are drawn, too.
@example(prompt=[2, 2, 2, 2, 3], sampling=Sampling(temperature=0.4), depth=3, stop=0)
def test_sampled_texts_are_the_reference_ones_also_of_a_rule_that_has_drawn_before(
    fast_engine: Engine, prompt: list[int], sampling: Sampling, depth: int, stop: int
):
    limits, rules = Limits(max_new_tokens=25, stop_ids=frozenset({stop})), [SampledRule(sampling) for _ in range(2)]
    for _ in range(2):
        got = fast_engine.generate(prompt, limits, num_draft_tokens=depth, rule=rules[0])
        expected = reference().generate(prompt, limits, num_draft_tokens=depth, rule=rules[1])

        assert (got.ids, got.accepted, got.origins, got.finish) == (
            expected.ids,
            expected.accepted,
            expected.origins,
            expected.finish,
        )


def test_a_listener_ends_a_sampled_text_and_the_next_one_is_not_disturbed(fast_engine: Engine):
    rule, limits = SampledRule(Sampling(temperature=1.0, seed=4)), Limits(max_new_tokens=30)
    heard: list[int] = []

    def listen(ids: Sequence[int]) -> bool:
        heard.extend(ids)
        return len(heard) > 6

    cut = fast_engine.generate(PROMPT, limits, num_draft_tokens=2, rule=rule, on_tokens=listen)
    fresh = SampledRule(Sampling(temperature=1.0, seed=4))

    assert (cut.finish, cut.ids) == ("caller", heard)
    assert fast_engine.generate(PROMPT, limits, num_draft_tokens=2, rule=fresh).ids[: len(heard)] == heard


def test_drawn_drafts_and_sampled_texts_of_adaptive_depth_take_the_reference_rounds_and_it_is_said_once():
    talk = Silent()
    mixed, limits, sampling = engine(talk=talk), Limits(max_new_tokens=10), Sampling(temperature=1.0, seed=4)

    def rule() -> SampledRule:
        return SampledRule(sampling, "sampled")

    texts = [e.generate(PROMPT, limits, num_draft_tokens=2, rule=rule()).ids for e in (mixed, mixed, reference())]
    adaptive = mixed.adaptive(PROMPT, 3, SampledRule(sampling))
    mixed.generate(PROMPT, limits, adaptive=adaptive, rule=SampledRule(sampling))

    assert texts[0] == texts[1] == texts[2]
    assert talk.notes == [
        "some requests take the reference rounds: captured rounds do not sample drafts",
        "some requests take the reference rounds: depth adapts in captured rounds of greedy texts only",
    ]


def test_a_draft_that_the_captured_round_does_not_compute_is_left_to_the_readable_one_with_the_reason():
    talk = Silent()

    opened = engine(talk=talk, residual="post-norm")

    assert opened.fast is None
    assert "residual = 'post-norm'" in talk.notes[0]


def test_a_target_with_a_window_is_left_to_the_reference_rounds_with_the_reason():
    talk = Silent()
    windowed = replace(WEIGHTS, shape=replace(WEIGHTS.shape, window=8))

    assert open_path(windowed, None, (), "uncaptured", talk) is None
    assert "a sliding window" in talk.notes[0]


def test_a_cpu_needs_no_captured_rounds_and_nothing_is_said():
    talk = Silent()

    assert open_path(WEIGHTS, None, (), "auto", talk) is None
    assert talk.notes == []


def test_costs_are_measured_per_depth_on_the_rounds_themselves(fast_engine: Engine):
    adaptive = fast_engine.adaptive(PROMPT, most=3)

    assert adaptive.most == 3
    assert all(s > 0 for s in adaptive.costs.round_s)
