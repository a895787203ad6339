"""Whether texts are distributed as plain sampling of the stub target writes them: exact odds, chi-square, p."""

from collections import Counter

import torch

from eyas.decode.sampling import Sampling, SamplingBatch, token_probs
from stub_models import next_logits


def exact_distribution(prompt: list[int], num: int, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """Probability of every text of `num` tokens under plain sampling."""
    found = {(): 1.0}
    for _ in range(num):
        longer: dict[tuple[int, ...], float] = {}
        for text, p in found.items():
            seen = [*prompt, *text]
            batch = SamplingBatch.of([sampling], torch.device("cpu"))
            for token, q in enumerate(token_probs(next_logits(seen[-2], seen[-1])[None], batch)[0].tolist()):
                if q > 0:
                    longer[(*text, token)] = p * q
        found = longer
    return found


def chi_square(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float], num: int) -> tuple[float, int]:
    """The statistic over cells of at least five expected texts, the rest pooled; and its degrees of freedom."""
    assert set(counts) <= set(expected), "a text that plain sampling cannot write"
    big = [text for text, p in expected.items() if num * p >= 5]
    cells = [(counts[text], num * expected[text]) for text in big]
    rest = 1 - sum(expected[text] for text in big)
    if num * rest >= 5:
        cells.append((num - sum(counts[text] for text in big), num * rest))
    return sum((seen - wanted) ** 2 / wanted for seen, wanted in cells), len(cells) - 1


def p_value(statistic: float, freedom: int) -> float:
    """Probability of a statistic at least this large, were the texts distributed as expected."""
    return float(torch.special.gammaincc(torch.tensor(freedom / 2.0), torch.tensor(statistic / 2.0)))
