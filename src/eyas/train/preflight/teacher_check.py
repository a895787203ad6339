"""Is the teacher the target? Logits are recomputed from states; here against the model's own, before they teach."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from eyas.data.text.tokenise import TokenRow
from eyas.errors import EyasError
from eyas.models.target import Target

# In bf16 two logits that are almost equal may change places; more than this is another function.
_SAME_ENOUGH = 0.95


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

    def as_document(self) -> dict[str, Any]:
        """The check as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"teacher: the recomputed head has the model's own first choice at {self.same_argmax:.1%} of"
            f" {self.num_tokens} positions (largest difference of a logit {self.largest_difference:.2g})"
        )


@torch.no_grad()
def check_teacher(target: Target, rows: Iterable[TokenRow], *, most_tokens: int = 256) -> TeacherCheck:
    """Compare over the first row, cut to `most_tokens`.

    Raises:
        TeacherWrong: too few first choices are the same: a norm, a scale or a cap of the model is not known to eyas.
    """
    ids = torch.tensor([next(iter(rows)).token_ids[:most_tokens]], device=target.device)
    own = target.model(input_ids=ids).logits[0].float()
    recomputed = target.logits(target.forward(ids).last)[0].float()
    check = TeacherCheck(
        num_tokens=len(own),
        same_argmax=float((own.argmax(-1) == recomputed.argmax(-1)).float().mean()),
        largest_difference=float((own - recomputed).abs().max()),
    )
    if check.same_argmax < _SAME_ENOUGH:
        raise TeacherWrong(
            "the recomputed logits are not the target's",
            type(target.model).__name__,
            str(check),
            "report the model class: it does something between last norm and logits that eyas does not know",
        )
    return check
