"""What a server that samples its drafts accepts on a given text: chances along the text, and the counts to expect.

Speculative sampling emits a token y as an accepted draft with probability min(p(y), q(y)) and otherwise after a
rejection with p(y) - min(p(y), q(y)); p is the target's, q the draft's. So, given y, it was an accepted
draft with probability min(1, q(y) / p(y)), whatever came before: the starts of rounds along a known text form a Markov
chain, and a forward recursion over them gives the expected counts exactly.
Source: Leviathan et al., arXiv:2211.17192, theorem 1; the conditioning on the text is ours (docs/parity.md).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.models.draft import Eagle3Draft

_SIMULATIONS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCounts:
    """Counts of one or more texts, to expect.

    Attributes:
        mean: rounds, then for each draft position the rounds that accept it.
        variance: of the same.
    """

    mean: tuple[float, ...]
    variance: tuple[float, ...]

    def __add__(self, other: "ExpectedCounts") -> "ExpectedCounts":
        return ExpectedCounts(
            mean=tuple(a + b for a, b in zip(self.mean, other.mean, strict=True)),
            variance=tuple(a + b for a, b in zip(self.variance, other.variance, strict=True)),
        )


@torch.no_grad()
def accept_chances(
    draft: Eagle3Draft,
    input_ids: Tensor,
    aux_states: Tensor,
    target_logits: Tensor,
    num_draft_tokens: int,
    temperature: float,
) -> Tensor:
    """Chance that draft k + 1 from index t was accepted, given those before it and the text.

    Args:
        draft: samples from its softmax at `temperature`, over its own vocabulary.
        input_ids: [1, T] ids of one text.
        aux_states: [1, T, A * Ht], in `fc` order.
        target_logits: [T, V]; row i predicts token i + 1.
        num_draft_tokens: K.
        temperature: of target and draft, above 0.

    Returns:
        [T, K] float64 on the CPU; 0 for drafts beyond the text.
    """
    num = input_ids.shape[1]
    chances = torch.zeros(num, num_draft_tokens, dtype=torch.float64)
    index = torch.arange(num, device=input_ids.device)
    target = (target_logits.double() / temperature).log_softmax(-1)
    for k, step in enumerate(draft.ttt_steps(input_ids, aux_states, num_draft_tokens)):
        inside = index + 2 + k < num
        if not bool(inside.any()):
            break
        at = index[inside] + 2 + k
        truth = input_ids[0, at]
        guesses = (draft.head(step.normed[0, inside]).double() / temperature).log_softmax(-1)
        drafted, is_offered = draft.to_draft_ids(truth)
        log_q = guesses.gather(-1, drafted[:, None])[:, 0].masked_fill(~is_offered, float("-inf"))
        log_p = target[at - 1].gather(-1, truth[:, None])[:, 0]
        chances[inside.cpu(), k] = (log_q - log_p).exp().clamp(max=1.0).cpu()
    return chances


def expected_counts(chances: Tensor, num_prompt: int, num_total: int, seed: int = 0) -> ExpectedCounts:
    """The counts to expect over one text.

    Args:
        chances: [T, K], see `accept_chances`.
        num_prompt, num_total: prompt tokens, prompt and answer tokens.
        seed: of the simulations that give the variance; the mean is exact.
    """
    table, depth = chances.tolist(), chances.shape[1]
    starts = {num_prompt: 1.0}
    mean = [0.0] * (depth + 1)
    for newest in range(num_prompt, num_total - 1):
        reached = starts.pop(newest, 0.0)
        if not reached:
            continue
        mean[0] += reached
        for k in range(depth):
            accepted = reached * table[newest - 1][k]
            _add(starts, newest + k + 1, reached - accepted)
            reached = accepted
            mean[k + 1] += reached
        _add(starts, newest + depth + 1, reached)
    return ExpectedCounts(mean=tuple(mean), variance=_variance(table, num_prompt, num_total, seed))


def _add(starts: dict[int, float], at: int, weight: float) -> None:
    if weight:
        starts[at] = starts.get(at, 0.0) + weight


def _variance(table: Sequence[Sequence[float]], num_prompt: int, num_total: int, seed: int) -> tuple[float, ...]:
    draw, depth = random.Random(seed), len(table[0])
    samples = []
    for _ in range(_SIMULATIONS):
        counts, newest = [0] * (depth + 1), num_prompt
        while newest < num_total - 1:
            counts[0] += 1
            k = 0
            while k < depth and draw.random() < table[newest - 1][k]:
                k += 1
                counts[k] += 1
            newest += k + 1
        samples.append(counts)
    means = [sum(column) / _SIMULATIONS for column in zip(*samples, strict=True)]
    columns = zip(zip(*samples, strict=True), means, strict=True)
    return tuple(sum((value - mean) ** 2 for value in column) / (_SIMULATIONS - 1) for column, mean in columns)
