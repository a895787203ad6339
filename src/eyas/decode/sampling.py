"""How a token is chosen from logits: temperature, top-k, top-p, min-p. One row at a time or a batch with own settings.

Shapes: B sequences, V vocabulary.
"""

from dataclasses import dataclass, replace
from math import inf
from numbers import Integral

import torch
from torch import Tensor

from eyas.errors import EyasError

_LEAST_TEMPERATURE = 1e-6  # far below it logits divided in fp32 overflow, and the temperature itself becomes 0
_END_OF_TOP_K = 2**31  # kernels count in 32 bits
_END_OF_SEEDS = 2**63


class SamplingInvalid(EyasError):
    """A sampling setting is outside its range."""

    code = "sampling-invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to choose the next token.

    Attributes:
        temperature: divides the logits, at least 1e-6; or 0 = greedy (the highest logit, the lowest id among equals).
        top_k: keep the k most likely tokens, below 2^31; 0 = all.
        top_p: keep the most likely tokens up to this sum of probabilities, (0, 1]; 1 = all.
        min_p: drop tokens below this share of the most likely one's probability, [0, 1]; 0 = all.
        seed: of the random generator, below 2^63 in size; the same seed gives the same text on the same device.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        temperature, top_k, seed = self.temperature, self.top_k, self.seed
        is_top_k = isinstance(top_k, Integral) and 0 <= top_k < _END_OF_TOP_K
        is_seed = isinstance(seed, Integral) and abs(seed) < _END_OF_SEEDS
        rules = {
            f"temperature is {temperature}, must be 0 (greedy) or {_LEAST_TEMPERATURE} and more, finite": temperature
            == 0
            or _LEAST_TEMPERATURE <= temperature < inf,
            f"top_k is {top_k}, must be at least 0, below 2^31, and whole": is_top_k,
            f"top_p is {self.top_p}, must be in (0, 1]": 0 < self.top_p <= 1,
            f"min_p is {self.min_p}, must be in [0, 1]": 0 <= self.min_p <= 1,
            f"seed is {seed}, must be below 2^63 in size, and whole": is_seed,
        }
        wrong = [text for text, is_right in rules.items() if not is_right]
        if wrong:
            raise SamplingInvalid(
                "the sampling settings are out of range",
                "Sampling",
                "; ".join(wrong),
                "correct the values named",
            )

    @property
    def is_greedy(self) -> bool:
        """Always the highest logit."""
        return self.temperature == 0

    def of_text(self, number: int) -> "Sampling":
        """Settings of text number n: the seed plus n, wrapping around after the largest seed."""
        moved = (self.seed + number + _END_OF_SEEDS - 1) % (2 * _END_OF_SEEDS - 1)
        return replace(self, seed=moved - (_END_OF_SEEDS - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingBatch:
    """Settings of B sequences as tensors [B], on the device of the logits.

    Attributes:
        temperature, top_k, top_p, min_p: as in `Sampling`.
        num_greedy: rows with temperature 0.
        has_top, has_min_p: any row has top-k or top-p, or min-p; known without asking the device.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    num_greedy: int
    has_top: bool
    has_min_p: bool

    @classmethod
    def of(cls, settings: list[Sampling], device: torch.device) -> "SamplingBatch":
        """One row per setting."""

        def column(name: str, dtype: torch.dtype) -> Tensor:
            return torch.tensor([getattr(s, name) for s in settings], dtype=dtype, device=device)

        return cls(
            temperature=column("temperature", torch.float32),
            top_k=column("top_k", torch.int64),
            top_p=column("top_p", torch.float32),
            min_p=column("min_p", torch.float32),
            num_greedy=sum(s.is_greedy for s in settings),
            has_top=any(s.top_k > 0 or s.top_p < 1 for s in settings),
            has_min_p=any(s.min_p > 0 for s in settings),
        )


def token_probs(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """Probabilities with which each token is chosen, [B, V] fp32; a greedy row is one-hot.

    Filters apply in the order of the engines: temperature, top-k, top-p, min-p, each on what the one before it left,
    renormalised. A token tied with the last one kept by top-k is cut in favour of the lower id.
    """
    logits = logits.float()
    num_vocab = logits.shape[-1]
    is_greedy = batch.temperature == 0
    scaled = logits / torch.where(is_greedy, 1.0, batch.temperature)[:, None]
    probs = scaled.softmax(-1)
    if batch.has_top:
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        k = torch.where(batch.top_k > 0, batch.top_k, num_vocab)[:, None]
        ordered = ordered.masked_fill(torch.arange(num_vocab, device=logits.device) >= k, 0)
        ordered = ordered / ordered.sum(-1, keepdim=True)
        before = ordered.cumsum(-1) - ordered  # the token that crosses top_p is kept
        is_cut = (before >= batch.top_p[:, None]) & (before > 0) & (batch.top_p < 1)[:, None]  # fp32 may hold p as 0
        cut = torch.zeros_like(probs).scatter(-1, order, ordered.masked_fill(is_cut, 0))
        # A row without them keeps its bits: what its neighbours ask for must not change it.
        probs = torch.where(((batch.top_k > 0) | (batch.top_p < 1))[:, None], cut, probs)
    if batch.has_min_p:
        probs = probs.masked_fill(probs < batch.min_p[:, None] * probs.amax(-1, keepdim=True), 0)
    probs = probs / probs.sum(-1, keepdim=True)
    if batch.num_greedy:
        one_hot = torch.zeros_like(probs).scatter(-1, logits.argmax(-1, keepdim=True), 1.0)
        probs = torch.where(is_greedy[:, None], one_hot, probs)
    return probs


def draw(probs: Tensor, uniform: Tensor) -> Tensor:
    """One token per row, [B], by inverting the distribution at `uniform` [B] in [0, 1).

    A row's token depends on its own number only, never on the rows beside it.
    """
    cumulative = probs.double().cumsum(-1)
    threshold = uniform.double()[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, threshold, right=True)[:, 0]
    return drawn.clamp(max=probs.shape[-1] - 1)


def beyond(target: Tensor, draft: Tensor) -> Tensor:
    """[V] what a target's distribution has beyond a draft's, max(p - q, 0), not normalised.

    Where nothing is left, rounding alone made the draft's sum the larger one: then the target's own distribution.
    """
    left = (target - draft).clamp(min=0)
    return left if float(left.sum()) > 0 else target
