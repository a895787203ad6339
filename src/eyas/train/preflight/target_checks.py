"""Checks of the loaded target: did it write the answers, and are the logits recomputed from its states its own?"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from math import ceil
from typing import Protocol

import torch
from torch import Tensor

from eyas.data.text.tokenise import TokenRow
from eyas.errors import EyasError
from eyas.models.states import states_of_row
from eyas.talk import Silent, Talk
from eyas.train.optimise.teaching import Teaching

# nats by which foreign text exceeds the target's own entropy; a target's own text, sampled at T = 1, exceeds it by 0.
_FOREIGN = 0.5
_MOST_FOREIGN = 0.1  # of the tokens, in rows that are foreign alone
_ERRORS = 3.0  # standard errors that a row's mean must be beyond the bound
# Standard deviation of a token's excess, nats: measured with SmolLM2-135M, its own text at T = 1 has 2.1, prose of
# others 3.2 (greedy text 0.7, at a mean of -1.1).
_SPREAD = 3.2
_ENOUGH = ceil((_ERRORS * _SPREAD / _FOREIGN) ** 2)  # tokens that tell a mean of 0 from one of `_FOREIGN`
_MOST_TOKENS = {"cuda": 16384, "cpu": 1024}
_GOLDEN = 0.6180339887498949
# In bf16 two almost equal logits may swap; more differences than this mean another function.
_SAME_ENOUGH = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswersCheck:
    """Supervised tokens under the target.

    Attributes:
        num_tokens: checked.
        nll: mean negative log-likelihood, nats.
        entropy: mean entropy of the target at the same positions, nats. Text sampled from the target at T = 1 has
            nll ≈ entropy, greedy text has less, text of another model or person more.
        greedy_share: share of tokens that are the target's first choice.
        foreign_share: share of tokens in rows that look foreign on their own; in the mean, greedy rows would hide them.
    """

    num_tokens: int
    nll: float
    entropy: float
    greedy_share: float
    foreign_share: float

    @property
    def is_foreign(self) -> bool:
        """The answers, or a good part of them, were most likely written by another model or person."""
        return self.nll > self.entropy + _FOREIGN or self.foreign_share > _MOST_FOREIGN

    @property
    def is_too_few(self) -> bool:
        """The answers look like the target's own, but there are too few tokens to be sure."""
        chance = _ERRORS * _SPREAD / max(1, self.num_tokens) ** 0.5
        return not self.is_foreign and self.num_tokens < _ENOUGH and self.nll - self.entropy + chance > _FOREIGN

    def as_document(self) -> dict[str, float | bool]:
        """The check as a JSON object."""
        return {**asdict(self), "is_foreign": self.is_foreign, "is_too_few": self.is_too_few}

    def __str__(self) -> str:
        if self.is_foreign and self.foreign_share < 0.9:
            verdict = f"{self.foreign_share:.0%} of them are not this target's own"
        elif self.is_too_few:
            verdict = f"too few tokens to tell whether they are this target's own ({self.num_tokens}; {_ENOUGH} needed)"
        else:
            verdict = "they are not this target's own" if self.is_foreign else "they can be this target's own"
        return (
            f"answers: negative log-likelihood {self.nll:.2f}, target's entropy {self.entropy:.2f} nats a token,"
            f" {self.greedy_share:.0%} are its first choice ({self.num_tokens} tokens): {verdict}"
        )


class _RowSequence(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> TokenRow: ...


@torch.no_grad()
def check_answers(
    teaching: Teaching, rows: _RowSequence, talk: Talk | None = None, *, most_tokens: int | None = None
) -> AnswersCheck:
    """Check rows spread over the whole set, up to `most_tokens` tokens, prompts included.

    Args:
        rows: in the order of their files; at least one is checked.
        most_tokens: None for 1024, or 16384 on a GPU.
    """
    most_tokens = most_tokens or _MOST_TOKENS["cuda" if teaching.parts.device.type == "cuda" else "cpu"]
    num_foreign, found, chosen = 0, list[Tensor](), _chosen(rows, most_tokens)
    num_tokens = sum(len(row.token_ids) for row in chosen)
    with (talk or Silent()).progress("checking the answers", num_tokens, "tokens") as bar:
        for row in chosen:
            if row.num_supervised > 0:
                figures = _figures(teaching, row)
                found.append(figures)
                num_foreign += len(figures) if _is_foreign_alone(figures) else 0
            bar.advance(len(row.token_ids))
    figures = torch.cat(found) if found else torch.zeros(0, 3)
    total = max(1, len(figures))
    nll, entropy, greedy = (figures.sum(0) / total).tolist()
    return AnswersCheck(
        num_tokens=len(figures), nll=nll, entropy=entropy, greedy_share=greedy, foreign_share=num_foreign / total
    )


def _chosen(rows: _RowSequence, most_tokens: int) -> list[TokenRow]:
    """Rows spread over the whole set, of at most `most_tokens` tokens together; at least one."""
    chosen, read = list[TokenRow](), 0
    for row in (rows[index] for index in _spread(len(rows))):
        if chosen and read + len(row.token_ids) > most_tokens:
            break
        read += len(row.token_ids)
        chosen.append(row)
    return chosen


def _figures(teaching: Teaching, row: TokenRow) -> Tensor:
    """[M, 3] fp64 on the CPU: negative log-likelihood, entropy and "is the first choice" of each supervised token."""
    teacher = teaching.parts
    ids = torch.tensor(row.token_ids, device=teacher.device)
    supervised = torch.tensor(row.is_supervised, device=teacher.device)[1:]
    states = states_of_row(teaching.reference, row.number, row.token_ids, ()).last[:-1][supervised]
    said, parts = ids[1:][supervised], list[Tensor]()
    for begin in range(0, len(said), 256):
        log_probs = teacher.logits(states[begin : begin + 256]).float().log_softmax(-1)
        part = said[begin : begin + 256]
        nll = -log_probs.gather(-1, part[:, None])[:, 0]
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        parts.append(torch.stack([nll, entropy, (log_probs.argmax(-1) == part).float()], 1))
    return torch.cat(parts).double().cpu() if parts else torch.zeros(0, 3, dtype=torch.float64)


def _is_foreign_alone(figures: Tensor) -> bool:
    """Whether a row's tokens are too unlikely for the target to have written them."""
    excess = figures[:, 0] - figures[:, 1]
    if len(excess) < 2:
        return False
    return bool(excess.mean() > _FOREIGN + _ERRORS * excess.std() / len(excess) ** 0.5)


def _spread(num_rows: int) -> Iterator[int]:
    """Some of the numbers below `num_rows`, once each; even the first few are spread over the whole range."""
    seen = set[int]()
    for k in range(2 * num_rows):
        index = int(num_rows * (k * _GOLDEN % 1.0))
        if index not in seen:
            seen.add(index)
            yield index


class TeacherWrong(EyasError):
    """The logits recomputed from the target's states are not those of the target."""

    code = "teacher-wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherCheck:
    """The recomputed head beside the model's own.

    Attributes:
        num_tokens: positions compared.
        same_argmax: share of them with the same first choice.
        largest_difference: of two logits.
    """

    num_tokens: int
    same_argmax: float
    largest_difference: float

    def __str__(self) -> str:
        return (
            f"teacher: the recomputed head has the model's own argmax at {self.same_argmax:.1%} of"
            f" {self.num_tokens} positions (largest difference of a logit {self.largest_difference:.2g})"
        )


@torch.no_grad()
def check_teacher(teaching: Teaching, rows: Iterable[TokenRow], *, most_tokens: int = 256) -> TeacherCheck | None:
    """Compare over the first row, cut to `most_tokens`; None where the target is not in this process.

    Raises:
        TeacherWrong: too few first choices are the same: eyas does not know a norm, a scale or a cap of the model.
    """
    if teaching.own_logits is None:
        return None
    row = next(iter(rows)).cut(most_tokens)
    own = teaching.own_logits(row.token_ids).float()
    last = states_of_row(teaching.reference, row.number, row.token_ids, ()).last
    recomputed = teaching.parts.logits(last).float()
    check = TeacherCheck(
        num_tokens=len(own),
        same_argmax=float((own.argmax(-1) == recomputed.argmax(-1)).float().mean()),
        largest_difference=float((own - recomputed).abs().max()),
    )
    if check.same_argmax < _SAME_ENOUGH:
        raise TeacherWrong(
            "the recomputed logits are not the target's",
            teaching.parts.name,
            str(check),
            "report the model class: between its last norm and its logits it does something that eyas does not know",
        )
    return check
