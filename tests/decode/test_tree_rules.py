"""Greedy verification of a tree by definition; sampled verification leaves the target's distribution as it is."""

from collections import Counter
from typing import Any

import pytest
import torch

from chi_square import chi_square, exact_distribution, p_value
from eyas.decode.sampling import Sampling
from eyas.decode.tree import ROOT, Child, DraftTree, Offered
from eyas.decode.tree_rules import GreedyTreeRule, SampledTreeRule, likeliest, tree_rule_for
from eyas.decode.tree_shape import TreeShape
from eyas.engine.engine import Engine, Limits
from eyas.engine.trees.tree_engine import TreeEngine
from stub_models import VOCAB, next_logits
from stub_trees import StubTreeDraft, StubTreeTarget

NUM_TEXTS, NUM_TOKENS, PROMPT = 500, 4, [1, 2]
LEAST_P = 0.001


def rows(*choices: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(choices), VOCAB).float()


TREE = DraftTree(ids=(5, 6, 7, 7, 8), parents=(ROOT, ROOT, 0, 1, 3), values=(0.0,) * 5)


@pytest.mark.parametrize(
    ("choices", "path", "bonus"),
    [
        ((6, 0, 7, 0, 8, 9), (1, 3, 4), 9),
        ((6, 0, 7, 0, 1, 9), (1, 3), 1),
        ((5, 7, 0, 4, 0, 9), (0, 2), 4),
        ((5, 8, 0, 4, 0, 9), (0,), 8),
        ((7, 7, 7, 7, 7, 7), (), 7),
    ],
)
def test_greedy_walks_down_as_long_as_a_child_is_the_targets_choice(choices: Any, path: Any, bonus: int):
    verdict = GreedyTreeRule().verify(rows(*choices), TREE)

    assert (verdict.path, verdict.bonus_token) == (path, bonus)


def test_with_an_empty_tree_the_rules_choose_as_plain_decoding_does():
    assert GreedyTreeRule().verify(rows(4), DraftTree()).bonus_token == 4
    assert SampledTreeRule(Sampling(temperature=1.0)).verify(1e9 * rows(4), DraftTree()).bonus_token == 4


def test_children_are_the_likeliest_tokens_in_target_ids_best_first():
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0], [3.0, 0.0, 0.0, 0.0]])
    first, second = likeliest(logits, torch.tensor([4, 9, 11, 12]), 2)

    assert [child.id for child in first.children] == [9, 11]
    assert [child.id for child in second.children] == [4, 9], "among equals the lower id"
    for offered, row in ((first, logits[0]), (second, logits[1])):
        wanted = row.log_softmax(-1).topk(2).values.tolist()
        assert [child.log_confidence for child in offered.children] == pytest.approx(wanted)


def test_a_vocabulary_narrower_than_the_tree_gives_what_it_has():
    assert [child.id for child in likeliest(torch.tensor([[0.0, 1.0]]), None, 5)[0].children] == [1, 0]


def test_temperature_zero_is_the_greedy_rule():
    assert isinstance(tree_rule_for(Sampling()), GreedyTreeRule)
    assert isinstance(tree_rule_for(Sampling(temperature=0.5), "sampled"), SampledTreeRule)


def test_drawn_children_differ_and_know_what_their_elders_left():
    rule = SampledTreeRule(Sampling(temperature=1.0, top_k=5), "sampled")
    for offered in rule.offer(torch.stack([next_logits(a, 3) for a in range(8)]), None, 7):
        assert offered.probs is not None
        assert len({child.id for child in offered.children}) == len(offered.children) == 5, "top-k leaves five"
        left = 1.0
        for child in offered.children:
            assert child.log_priority == pytest.approx(torch.tensor(left).log().item(), abs=1e-4)
            assert child.log_confidence == pytest.approx(float(offered.probs[child.id].log()), abs=1e-4)
            left -= float(offered.probs[child.id])


def like_the_target(before: int, last: int, depth: int) -> torch.Tensor:
    return next_logits(before, last) + 0.7 * next_logits(last, before)


def surer_than_the_target(before: int, last: int, depth: int) -> torch.Tensor:
    return 2 * next_logits(before, last)


def count_texts(rule: Any, shape: TreeShape, draft: StubTreeDraft) -> tuple[Counter[tuple[int, ...]], int]:
    counts: Counter[tuple[int, ...]] = Counter()
    num_accepted = 0
    for _ in range(NUM_TEXTS):
        text = TreeEngine(Engine(StubTreeTarget(), draft)).generate(
            PROMPT, Limits(max_new_tokens=NUM_TOKENS), shape, rule=rule
        )
        counts[tuple(text.ids)] += 1
        num_accepted += sum(text.accepted)
    return counts, num_accepted


INDEX = torch.tensor([0, 1, 2, 4, 5, 7, 8, 9, 11])


@pytest.mark.parametrize(
    ("kind", "shape", "drafts", "draft"),
    [
        ("likeliest", "3x3x7", "greedy", StubTreeDraft(like_the_target)),
        ("drawn", "2x2x4", "sampled", StubTreeDraft(like_the_target)),
        ("drawn", "3x3x7", "sampled", StubTreeDraft(like_the_target)),
        ("drawn, a sure draft", "2x3x5", "sampled", StubTreeDraft(surer_than_the_target)),
        ("drawn, smaller vocabulary", "3x2x6", "sampled", StubTreeDraft(like_the_target, INDEX)),
    ],
)
def test_sampling_with_trees_is_distributed_as_plain_sampling(kind, shape, drafts, draft, record_property):
    settings = {"temperature": 0.8, "top_k": 4, "top_p": 0.95}
    expected = exact_distribution(PROMPT, NUM_TOKENS, Sampling(**settings))
    rule = SampledTreeRule(Sampling(**settings, seed=11), drafts)

    counts, num_accepted = count_texts(rule, TreeShape.parse(shape), draft)

    statistic, freedom = chi_square(counts, expected, NUM_TEXTS)
    p = p_value(statistic, freedom)
    record_property("chi_square", f"{kind}, {shape}: {statistic:.1f}, {freedom} degrees of freedom, p = {p:.3f}")
    print(f"{kind}, {shape}: chi-square {statistic:.1f}, {freedom} degrees of freedom, p = {p:.3f}, {num_accepted=}")
    assert freedom >= 10, "too few cells to tell anything"
    assert p > LEAST_P
    assert num_accepted > NUM_TEXTS / 2


class KeepsTheBestDraws(SampledTreeRule):
    """The mistake that `log_priority` is there to prevent: a drawn token is kept or not because of what it is."""

    def offer(self, logits: torch.Tensor, vocab_index: torch.Tensor | None, width: int) -> list[Offered]:
        return [
            Offered(
                children=tuple(
                    Child(id=c.id, log_confidence=c.log_confidence, log_priority=c.log_confidence)
                    for c in offered.children
                ),
                probs=offered.probs,
            )
            for offered in super().offer(logits, vocab_index, width)
        ]


def test_keeping_drawn_tokens_for_what_they_are_would_be_noticed():
    settings = {"temperature": 0.8, "top_k": 4, "top_p": 0.95}
    expected = exact_distribution(PROMPT, NUM_TOKENS, Sampling(**settings))

    counts, _ = count_texts(
        KeepsTheBestDraws(Sampling(**settings, seed=11), "sampled"),
        TreeShape(width=3, depth=2, num_nodes=2),
        StubTreeDraft(like_the_target),
    )

    assert p_value(*chi_square(counts, expected, NUM_TEXTS)) < LEAST_P
