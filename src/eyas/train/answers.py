"""Do the answers come from this target? A draft learns to guess the target: foreign text teaches it the wrong thing."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import torch

from eyas.data.tokenise import TokenRow
from eyas.models.target import Target

# nats by which foreign text exceeds the target's own entropy; a target's own text, sampled at T = 1, exceeds it by 0.
_FOREIGN = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswersCheck:
    """Supervised tokens under the target.

    Attributes:
        num_tokens: looked at.
        nll: mean negative log-likelihood, nats.
        entropy: mean entropy of the target at the same positions, nats. Text sampled from the target at T = 1 has
            nll ≈ entropy, greedy text less; text by somebody else more.
        greedy_share: share of tokens that are the target's first choice.
    """

    num_tokens: int
    nll: float
    entropy: float
    greedy_share: float

    @property
    def is_foreign(self) -> bool:
        """The answers were most likely written by another model or person."""
        return self.nll > self.entropy + _FOREIGN

    def as_document(self) -> dict[str, float | bool]:
        """The check as a JSON object."""
        return {**asdict(self), "is_foreign": self.is_foreign}

    def __str__(self) -> str:
        verdict = "they are not this target's own" if self.is_foreign else "they can be this target's own"
        return (
            f"answers: negative log-likelihood {self.nll:.2f}, target's entropy {self.entropy:.2f} nats a token,"
            f" {self.greedy_share:.0%} are its first choice ({self.num_tokens} tokens): {verdict}"
        )


@torch.no_grad()
def check_answers(target: Target, rows: Iterable[TokenRow], *, most_tokens: int = 1024) -> AnswersCheck:
    """Look at rows in order until `most_tokens` tokens, prompts included, have been read (at least one row)."""
    read = num = 0
    nll = entropy = greedy = 0.0
    for row in rows:
        if read and read + len(row.token_ids) > most_tokens:
            break
        read += len(row.token_ids)
        ids = torch.tensor([row.token_ids], device=target.device)
        supervised = torch.tensor(row.is_supervised, device=target.device)[1:]
        states = target.forward(ids).last[0, :-1][supervised]
        said = ids[0, 1:][supervised]
        for begin in range(0, len(said), 256):
            log_probs = target.logits(states[begin : begin + 256]).float().log_softmax(-1)
            part = said[begin : begin + 256]
            nll -= float(log_probs.gather(-1, part[:, None]).sum())
            entropy -= float((log_probs.exp() * log_probs).sum())
            greedy += float((log_probs.argmax(-1) == part).sum())
        num += len(said)
    total = max(1, num)
    return AnswersCheck(num_tokens=num, nll=nll / total, entropy=entropy / total, greedy_share=greedy / total)
