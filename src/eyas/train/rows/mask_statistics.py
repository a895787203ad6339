"""What the loss mask covers, so that an empty, full or broken mask is seen before training."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from eyas.data.text.tokenise import TokenRow


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskStatistics:
    """Statistics of the mask over the rows checked.

    Attributes:
        num_rows, num_tokens: checked.
        supervised_share: of the tokens.
        least_share, most_share: over rows.
        num_without: rows without a supervised token.
        mean_stretch: mean length of a run of supervised tokens, an answer; 0 without any.
        first_step_share, last_step_share: of the supervised tokens, those that step 0 and the last unrolled step learn
            from (the others are too close to the start of their row).
    """

    num_rows: int
    num_tokens: int
    supervised_share: float
    least_share: float
    most_share: float
    num_without: int
    mean_stretch: float
    first_step_share: float
    last_step_share: float

    def as_document(self) -> dict[str, Any]:
        """The statistics as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"mask: {self.supervised_share:.0%} of the tokens supervised (rows {self.least_share:.0%} …"
            f" {self.most_share:.0%}; {self.num_without} without any), answers of {self.mean_stretch:.0f} tokens;"
            f" step 0 learns from {self.first_step_share:.1%} of them, the last step from {self.last_step_share:.1%}"
        )


def mask_statistics(rows: Iterable[TokenRow], ttt_steps: int) -> MaskStatistics:
    """Statistics of `rows` (at least one)."""
    shares, stretches = [], []
    num_tokens = num_supervised = first = last = 0
    for row in rows:
        flags = row.is_supervised
        num = sum(flags)
        num_tokens += len(flags)
        num_supervised += num
        first += sum(flags[2:])
        last += sum(flags[1 + ttt_steps :])
        shares.append(num / max(1, len(flags)))
        stretches += [len(list(run)) for is_supervised, run in groupby(flags) if is_supervised]
    assert shares, "a plan has rows"
    return MaskStatistics(
        num_rows=len(shares),
        num_tokens=num_tokens,
        supervised_share=num_supervised / max(1, num_tokens),
        least_share=min(shares),
        most_share=max(shares),
        num_without=sum(share == 0 for share in shares),
        mean_stretch=sum(stretches) / max(1, len(stretches)),
        first_step_share=first / max(1, num_supervised),
        last_step_share=last / max(1, num_supervised),
    )
