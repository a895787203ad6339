"""How likely the counts of a server are under a hypothesis about its draft, and how sure that makes which one.

The server answered other texts than those of the replay, and acceptance differs from text to text. So each conditional
share is a Beta distribution around the replayed one, and a count of the server is beta-binomial: more rounds
make the answer sharper only down to what texts differ by.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isnan, lgamma, log, pi, sqrt

from eyas.decode.accept_length import Acceptance

# Rounds that a conditional share is worth: the share of one mix of texts lies 4 points (one standard deviation at one
# half) beside that of another. Between the kinds of text that ship with eyas it is 3 to 6 points.
_TEXTS = 150.0
_LENGTH_OF_TEXTS = 0.06  # standard deviation of accept length - 1 between mixes of texts, relative
_ROUNDS_UNTOLD = 200
_STEP_OF_FIGURE = 0.01  # accept lengths are told to two digits
# Of the logit of every share: harder texts or another target; texts that are as hard or easier (no fault gains drafts).
HARDER = tuple(-step / 4 for step in range(1, 15))
AS_HARD = (0.0, 0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFigures:
    """What was served.

    Attributes:
        source: for a person.
        num_draft_tokens: K.
        accept_length: bonus included.
        rounds: None = not told; 200 are assumed.
        per_position: joint shares; () = not told: then the accept length alone decides.
    """

    source: str
    num_draft_tokens: int
    accept_length: float
    rounds: int | None = None
    per_position: tuple[float, ...] = ()

    @property
    def known_rounds(self) -> int:
        """Rounds, or those that are assumed."""
        return self.rounds or _ROUNDS_UNTOLD


def conditional_of(replayed: Acceptance, shift: float = 0.0) -> tuple[float, ...]:
    """Conditional shares of a replay, off 0 and 1 by what few rounds leave open, with their logits shifted."""
    before = (replayed.rounds, *replayed.accepted_at[:-1])
    shares = [(a + 0.5) / (b + 1.0) for a, b in zip(replayed.accepted_at, before, strict=True)]
    return tuple(1.0 / (1.0 + exp(-(log(q / (1.0 - q)) + shift))) for q in shares)


def log_likelihood(served: ServedFigures, replayed: Acceptance, shift: float = 0.0) -> float:
    """Log-probability of what was served, given the replay of a hypothesis.

    Args:
        replayed: counts over the replayed texts, at the same K.
        shift: of the logits of all conditional shares.
    """
    shares = conditional_of(replayed, shift)
    if not served.per_position:
        return _of_length(served, shares, replayed.rounds)
    before = (replayed.rounds, *replayed.accepted_at[:-1])
    total, reached = 0.0, float(served.known_rounds)
    for share, joint, known in zip(shares, served.per_position, before, strict=False):
        accepted = min(joint * served.known_rounds, reached)
        worth = min(_TEXTS, known + 1.0)
        total += _beta_binomial(accepted, reached, share * worth, (1.0 - share) * worth)
        reached = accepted
    return total


def log_likelihood_of_anything(served: ServedFigures) -> float:
    """Log-probability of what was served where every share of each position is as likely as any other."""
    if not served.per_position:
        return -log(served.num_draft_tokens)
    total, reached = 0.0, float(served.known_rounds)
    for joint in served.per_position:
        accepted = min(joint * served.known_rounds, reached)
        total += _beta_binomial(accepted, reached, 1.0, 1.0)
        reached = accepted
    return total


def apart(one: Acceptance, other: Acceptance) -> float:
    """The largest difference of two replays' conditional shares, in standard deviations between two mixes of texts."""
    worst = 0.0
    before = zip((one.rounds, *one.accepted_at[:-1]), (other.rounds, *other.accepted_at[:-1]), strict=True)
    for p, q, (n, m) in zip(conditional_of(one), conditional_of(other), before, strict=True):
        middle = (p + q) / 2
        spread = sqrt(middle * (1.0 - middle) * (1.0 / min(_TEXTS, n + 1.0) + 1.0 / min(_TEXTS, m + 1.0)))
        worst = max(worst, abs(p - q) / spread)
    return worst


def deviation(served: ServedFigures, replayed: Acceptance, shift: float = 0.0) -> float:
    """The largest deviation of a served conditional share (or of the accept length) in standard deviations."""
    shares = conditional_of(replayed, shift)
    if not served.per_position:
        mean, spread = _length_of(shares, replayed.rounds, served)
        return abs(served.accept_length - mean) / spread
    worst, reached = 0.0, float(served.known_rounds)
    before = (replayed.rounds, *replayed.accepted_at[:-1])
    for share, joint, known in zip(shares, served.per_position, before, strict=False):
        accepted, worth = min(joint * served.known_rounds, reached), min(_TEXTS, known + 1.0)
        if reached < 1.0:
            break
        spread = sqrt(share * (1.0 - share) * (1.0 / reached + 1.0 / worth)) + 0.5 / reached
        worst = max(worst, abs(accepted / reached - share) / spread)
        reached = accepted
    return worst


def posteriors(weights: Sequence[float], log_likelihoods: Sequence[float]) -> list[float]:
    """Prior weights and log-likelihoods to probabilities that sum to 1."""
    assert len(weights) == len(log_likelihoods)
    assert not any(map(isnan, log_likelihoods))
    logs = [log(weight) + likelihood for weight, likelihood in zip(weights, log_likelihoods, strict=True)]
    highest = max(logs)
    shares = [exp(one - highest) for one in logs]
    return [share / sum(shares) for share in shares]


def mean_log(log_likelihoods: Sequence[float]) -> float:
    """Log of the mean likelihood: of a hypothesis that leaves a number open."""
    highest = max(log_likelihoods)
    return highest + log(sum(exp(one - highest) for one in log_likelihoods) / len(log_likelihoods))


def _of_length(served: ServedFigures, shares: Sequence[float], replayed_rounds: int) -> float:
    mean, spread = _length_of(shares, replayed_rounds, served)
    return -0.5 * ((served.accept_length - mean) / spread) ** 2 - log(spread * sqrt(2.0 * pi))


def _length_of(shares: Sequence[float], replayed_rounds: int, served: ServedFigures) -> tuple[float, float]:
    """Mean and standard deviation of an accept length over the server's rounds."""
    joint, product = [], 1.0
    for share in shares:
        product *= share
        joint.append(product)
    mean = 1.0 + sum(joint)
    squares = sum((2 * k + 1) * share for k, share in enumerate(joint))  # of accepted drafts
    variance = max(squares - (mean - 1.0) ** 2, 1e-4)
    texts = _LENGTH_OF_TEXTS * (mean - 1.0)
    sampling = variance / served.known_rounds + variance / max(replayed_rounds, 1)
    return mean, sqrt(sampling + texts**2 + _STEP_OF_FIGURE**2)


def _beta_binomial(hits: float, trials: float, alpha: float, beta: float) -> float:
    """Log-probability of the count, without the factor that is the same for every hypothesis."""
    hits_and = lgamma(hits + alpha) + lgamma(trials - hits + beta) - lgamma(trials + alpha + beta)
    return hits_and - (lgamma(alpha) + lgamma(beta) - lgamma(alpha + beta))
