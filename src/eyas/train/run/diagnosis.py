"""Where a loss that is no number came from: looked for afterwards, with the weights of before the step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eyas.data.text.tokenise import TokenRow
from eyas.train.optimise.trainer import Trainer

_MOST_ROWS = 64


@torch.no_grad()
def find_not_finite(trainer: Trainer, rows: Sequence[TokenRow]) -> str:
    """The first tensor that is not finite, in the order in which a step makes them.

    Args:
        trainer: whose last step failed.
        rows: of that step.
    """
    bad = [name for name, parameter in trainer.draft.named_parameters() if not _is_finite(parameter)]
    if bad:
        return f"weights of the draft are not finite: {', '.join(bad[:4])}"
    boundaries = trainer.draft.spec.aux_boundaries or ()
    for number, row in enumerate(rows[:_MOST_ROWS]):
        ids = torch.tensor([row.token_ids], device=trainer.target.device)
        states = trainer.target.forward(ids, boundaries)
        where = f"row {number + 1} of the step's {len(rows)} ({len(row.token_ids)} tokens)"
        for boundary, state in zip(boundaries, states.aux.chunk(max(1, len(boundaries)), -1), strict=True):
            if not _is_finite(state):
                return f"the target's state at boundary {boundary} is not finite in {where}: the target overflows"
        if not _is_finite(states.last):
            return f"the target's last state is not finite in {where}: the target overflows"
    return "weights of the draft and states of the target are finite: it arose in the draft's own computation"


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())
