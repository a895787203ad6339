"""Depth adapts to what drafts are worth; the text never changes, and a bad draft costs a small bounded share."""

import random
import statistics
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chi_square import chi_square, exact_distribution, p_value
from eyas.decode.chain import SampledRule
from eyas.decode.sampling import Sampling
from eyas.engine.adaptive import AdaptiveDepth, AdaptiveSettings, Calibration, DepthCounts
from eyas.engine.cost_table import CostTable
from eyas.engine.engine import Engine, Limits
from stub_models import VOCAB, StubDraft, StubTarget, moody_draft, right_draft, wrong_draft

DRAFTS = {"always right": right_draft, "never right": wrong_draft, "sometimes right": moody_draft}
# A plain step 1 s; one draft costs 0.2 s (reading 0.1), each further one 0.1 s.
COSTS = CostTable(round_s=(1.0, 1.2, 1.3, 1.4, 1.5), read_s=0.1)


@pytest.mark.parametrize("kind", DRAFTS)
@settings(max_examples=25, deadline=None)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5),
    num=st.integers(1, 60),
    wait=st.integers(1, 8),
)
def test_the_text_is_plain_text(kind: str, prompt: list[int], num: int, wait: int):
    adaptive = AdaptiveDepth(COSTS, AdaptiveSettings(first_wait=wait, budget=1.0, trial=2, window=4))
    limits = Limits(max_new_tokens=num)

    text = Engine(StubTarget(), DRAFTS[kind]()).generate(prompt, limits, adaptive=adaptive)

    assert text.ids == Engine(StubTarget()).generate(prompt, limits).ids
    assert text.acceptance.rounds == len(text.drafted) == len(text.accepted)


@pytest.mark.parametrize("drafts", ["greedy", "sampled"])
def test_sampled_texts_are_distributed_as_plain_ones_though_the_draft_stops_by_its_confidence(drafts: str):
    sampling = Sampling(temperature=0.8, top_k=3, seed=5)
    costs = CostTable(round_s=(1.0, 1.25, 1.5, 1.75), read_s=0.05)
    adaptive, rule = AdaptiveDepth(costs, AdaptiveSettings(first_wait=2, budget=1.0)), SampledRule(sampling, drafts)  # type: ignore[arg-type]
    engine, counts, depths = Engine(StubTarget(), moody_draft()), Counter[tuple[int, ...]](), Counter[int]()
    for _ in range(1200):
        text = engine.generate([1, 2], Limits(max_new_tokens=4), adaptive=adaptive, rule=rule)
        counts[tuple(text.ids)] += 1
        depths.update(text.drafted)

    statistic, freedom = chi_square(counts, exact_distribution([1, 2], 4, sampling), 1200)

    assert p_value(statistic, freedom) > 0.001
    assert len(depths) >= 3, f"depth hardly varied: {depths}"


def test_a_draft_that_is_always_right_is_drafted_to_the_full_depth():
    adaptive = AdaptiveDepth(COSTS)

    text = Engine(StubTarget(), right_draft()).generate([1, 2], Limits(max_new_tokens=300), adaptive=adaptive)

    assert text.drafted[-20:] == [4] * 20


def test_a_draft_that_is_never_right_is_turned_off_and_its_rounds_count():
    adaptive = AdaptiveDepth(COSTS)

    text = Engine(StubTarget(), wrong_draft()).generate([1, 2], Limits(max_new_tokens=400), adaptive=adaptive)

    assert text.drafted.count(0) > 350
    assert text.acceptance.rounds == 399
    assert text.acceptance.proposed_at[0] == 399 - text.drafted.count(0)


def test_while_speculation_is_off_the_draft_is_not_called():
    calls = 0

    class Counting(StubDraft):
        def read(self, *args: object) -> object:  # type: ignore[override]
            nonlocal calls
            calls += 1
            return super().read(*args)  # type: ignore[arg-type]

    draft = Counting(lambda before, last, _: -right_draft()._logits(before, last, 0))
    Engine(StubTarget(), draft).generate([1, 2], Limits(max_new_tokens=400), adaptive=AdaptiveDepth(COSTS))

    assert 0 < calls < 30


def simulate(costs: CostTable, accepts: Callable[[int], int], num_tokens: int, *, known_in_advance: bool) -> float:
    """Seconds for so many tokens when a round accepts `accepts(round)` drafts at most, by the costs themselves."""
    adaptive, seconds, gained, num_rounds, missed = AdaptiveDepth(costs), 0.0, 0, 0, 0
    while gained < num_tokens:
        asked = adaptive.best_now() if known_in_advance else adaptive.most_now()
        accepted = min(accepts(num_rounds), asked)
        seconds += costs.of_round(asked, has_read=asked > 0) + 0.02 * missed * (asked > 0)
        missed = 0 if asked else missed + 1
        adaptive.saw(asked, asked, accepted)
        gained += accepted + 1
        num_rounds += 1
    return seconds / gained * num_tokens


@pytest.mark.parametrize("known_in_advance", [True, False])
@pytest.mark.parametrize("first_step", [0.05, 0.2, 0.5, 1.0])
def test_a_useless_draft_costs_less_than_three_percent(first_step: float, known_in_advance: bool):
    costs = CostTable(round_s=tuple(1 + (k > 0) * first_step + 0.05 * k for k in range(6)))

    seconds = simulate(costs, lambda _: 0, 2000, known_in_advance=known_in_advance)

    assert seconds < 1.03 * 2000


def speed(
    costs: CostTable, depths: Callable[[AdaptiveDepth], int], texts: list[tuple[float, int]], chance: random.Random
) -> float:
    """Tokens a second over texts of (share of drafts accepted, tokens), by the costs themselves."""
    adaptive, seconds, gained = AdaptiveDepth(costs), 0.0, 0
    for share, num_tokens in texts:
        until = gained + num_tokens
        while gained < until:
            depth, accepted = depths(adaptive), 0
            while accepted < depth and chance.random() < share:
                accepted += 1
            adaptive.saw(depth, depth, accepted)
            seconds += costs.round_s[depth]
            gained += accepted + 1
    return gained / seconds


@pytest.mark.parametrize("share", [0.5, 0.7, 0.85])
def test_a_good_draft_gets_nearly_what_its_best_fixed_depth_gives(share: float):
    costs = CostTable(round_s=(1.0, 1.19, 1.28, 1.37, 1.45, 1.65))

    def run(depths: Callable[[AdaptiveDepth], int]) -> float:
        return speed(costs, depths, [(share, 1500)], random.Random(1))

    fixed = max(run(lambda _, k=k: k) for k in range(6))  # type: ignore[misc]
    chosen = run(lambda adaptive: adaptive.best_now())

    assert chosen > 0.95 * fixed


def test_texts_of_uneven_kinds_get_what_the_best_fixed_depth_gives():
    """A few bad rounds, or a bad text, must not turn off for long what gains on the whole."""
    costs = CostTable(round_s=(1.0, 1.18, 1.26, 1.36, 1.43, 1.61))

    def run(depths: Callable[[AdaptiveDepth], int]) -> float:
        found = []
        for seed in range(16):
            chance = random.Random(seed)
            texts = [(chance.choice((0.2, 0.5, 0.65, 0.8)), 120) for _ in range(40)]
            found.append(speed(costs, depths, texts, chance))
        return statistics.fmean(found)

    fixed = max(run(lambda _, k=k: k) for k in range(2, 5))  # type: ignore[misc]
    chosen = run(lambda adaptive: adaptive.best_now())

    assert chosen > 0.97 * fixed, (chosen, fixed)


def test_speculation_comes_back_when_the_draft_becomes_good():
    adaptive = AdaptiveDepth(COSTS)
    for i in range(3000):
        asked = adaptive.best_now()
        adaptive.saw(asked, asked, asked if i > 300 else 0)

    assert adaptive.best_now() == 4


def test_drafting_ends_where_the_drafts_own_confidence_is_low():
    adaptive = AdaptiveDepth(COSTS)

    assert adaptive.wants_another([0.9], 0)
    assert not adaptive.wants_another([0.01], 0)
    assert not adaptive.wants_another([0.9, 0.05], 2)


def test_confidence_is_calibrated_by_what_is_accepted():
    modest, boastful = Calibration(), Calibration()
    for _ in range(100):
        modest.saw(0.3, was_accepted=True)
        boastful.saw(0.95, was_accepted=False)

    assert modest.share(0.3) > 0.9
    assert boastful.share(0.95) < 0.1


def test_depths_behind_a_rejected_draft_say_nothing():
    counts = DepthCounts(3)
    for _ in range(50):
        counts.saw(3, 1)

    shares = counts.shares()
    assert shares[0] > 0.9
    assert shares[1] < 0.1
    assert abs(shares[2] - shares[1]) < 1e-9, "the third depth was never judged"


def test_noise_cannot_make_a_deeper_round_cheaper():
    assert CostTable.of_samples([[1.0, 1.1, 5.0], [0.9], [1.3]]).round_s == (1.1, 1.1, 1.3)


def test_drafted_rounds_of_a_busy_machine_lie_on_a_line_through_their_least_times():
    noisy = [[1.0, 3.0], [1.21, 9.0], [1.29, 2.0], [1.41, 1.5], [1.49, 4.0]]

    table = CostTable.of_noisy_samples(noisy, [0.1, 0.3])

    assert table.round_s == pytest.approx((1.0, 1.206, 1.302, 1.398, 1.494))
    assert table.read_s == 0.1
