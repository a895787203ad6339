"""Greedy verification by definition; sampled verification leaves the target's distribution as it is."""

from collections import Counter

import pytest
import torch

from chi_square import chi_square, exact_distribution, p_value
from eyas.decode.chain import DraftToken, GreedyRule, SampledRule, rule_for
from eyas.decode.sampling import Sampling
from eyas.engine.engine import Engine, Limits
from stub_models import VOCAB, StubDraft, StubTarget, moody_draft, next_logits

NUM_TEXTS = 900
LEAST_P = 0.001


def rows(*choices: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(choices), VOCAB).float()


@pytest.mark.parametrize(
    ("drafts", "accepted", "bonus"),
    [([5, 6, 7], 3, 8), ([5, 6, 1], 2, 7), ([1, 6, 7], 0, 5), ([5, 1, 7], 1, 6), ([], 0, 5)],
)
def test_greedy_accepts_up_to_the_first_difference(drafts: list[int], accepted: int, bonus: int):
    verdict = GreedyRule().verify(rows(5, 6, 7, 8)[: len(drafts) + 1], [DraftToken(i) for i in drafts])

    assert (verdict.num_accepted_drafts, verdict.bonus_token) == (accepted, bonus)


def test_a_greedy_draft_is_in_target_ids():
    assert GreedyRule().draft(torch.tensor([0.0, 2.0, 1.0]), torch.tensor([4, 9, 11])).id == 9
    assert GreedyRule().draft(torch.tensor([0.0, 2.0, 1.0]), None).id == 1


def test_temperature_zero_is_the_greedy_rule():
    assert isinstance(rule_for(Sampling()), GreedyRule)
    assert isinstance(rule_for(Sampling(temperature=0.5)), SampledRule)


def offers_of_another_model() -> StubDraft:
    """A draft that is somewhat like the target, over a vocabulary of its own."""
    index = torch.tensor([0, 1, 2, 4, 5, 7, 8, 9, 11])
    return StubDraft(lambda before, last, _: next_logits(before, last) + next_logits(last, before), index)


@pytest.mark.parametrize(
    ("kind", "drafts", "make"),
    [
        ("greedy drafts", "greedy", moody_draft),
        ("sampled drafts", "sampled", moody_draft),
        ("sampled drafts of a smaller vocabulary", "sampled", offers_of_another_model),
        ("no drafts", "greedy", None),
    ],
)
def test_speculative_sampling_is_distributed_as_plain_sampling(kind, drafts, make, record_property):
    sampling = Sampling(temperature=0.8, top_k=3, top_p=0.95)
    prompt, num = [1, 2], 4
    expected = exact_distribution(prompt, num, sampling)
    counts: Counter[tuple[int, ...]] = Counter()
    rule = SampledRule(Sampling(temperature=0.8, top_k=3, top_p=0.95, seed=11), drafts)
    num_accepted = 0
    for _ in range(NUM_TEXTS):
        engine = Engine(StubTarget(), make() if make else None)
        text = engine.generate(prompt, Limits(max_new_tokens=num), num_draft_tokens=2 if make else 0, rule=rule)
        counts[tuple(text.ids)] += 1
        num_accepted += sum(text.accepted)

    statistic, freedom = chi_square(counts, expected, NUM_TEXTS)
    p = p_value(statistic, freedom)
    record_property("chi_square", f"{kind}: {statistic:.1f} with {freedom} degrees of freedom, p = {p:.3f}")
    assert freedom >= 10, "too few cells to tell anything"
    assert p > LEAST_P
    assert num_accepted > 0 or make is None


def test_the_chi_square_test_can_fail():
    sampling = Sampling(temperature=0.8, top_k=3)
    expected = exact_distribution([1, 2], 4, sampling)
    counts: Counter[tuple[int, ...]] = Counter()
    rule = SampledRule(Sampling(temperature=1.0, top_k=3, seed=11))  # another temperature
    for _ in range(NUM_TEXTS):
        counts[tuple(Engine(StubTarget()).generate([1, 2], Limits(max_new_tokens=4), rule=rule).ids)] += 1

    statistic, freedom = chi_square(counts, expected, NUM_TEXTS)
    assert p_value(statistic, freedom) < LEAST_P


def test_a_certain_draft_of_a_certain_target_is_always_accepted():
    rule = SampledRule(Sampling(temperature=1.0), "sampled")
    sure = torch.full((VOCAB,), -1e9)
    sure[4] = 0.0

    token = rule.draft(sure, None)
    verdict = rule.verify(torch.stack([sure, sure]), [token])

    assert (token.id, verdict.num_accepted_drafts, verdict.bonus_token) == (4, 1, 4)


def test_a_rejection_that_only_rounding_made_still_has_a_token():
    rule = SampledRule(Sampling(temperature=1.0), "sampled")
    rule._uniform = lambda num, device: torch.full((num,), 1 - 2**-53, dtype=torch.float64)  # type: ignore[method-assign]
    logits = torch.full((VOCAB,), -1e9)
    logits[4] = logits[5] = 0.0
    over = torch.zeros(VOCAB)
    over[4], over[5] = 0.50000006, 0.5  # sums to more than 1 by one rounding: nowhere below the target

    verdict = rule.verify(torch.stack([logits, logits]), [DraftToken(4, over)])

    assert (verdict.num_accepted_drafts, verdict.bonus_token) == (0, 5)
