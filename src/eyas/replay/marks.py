"""How many drafts would be accepted from each position of a text: the unrolled draft against the recorded tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eyas.models.draft import Eagle3Draft


@torch.no_grad()
def accepted_from_everywhere(
    draft: Eagle3Draft, input_ids: Tensor, aux_states: Tensor, num_draft_tokens: int, lengths: Sequence[int]
) -> Tensor:
    """Accepted drafts when drafting from each index, with greedy drafts and a target that continues as recorded.

    Draft k + 1 from index t is accepted iff drafts 1 … k are and the draft's argmax is token t + 2 + k. As long as all
    before were accepted, what the draft reads as its own tokens *is* the text, so one unrolled pass over all positions
    decides every round that could start anywhere. The head runs only where acceptance is still open.

    Args:
        draft: the draft.
        input_ids: [B, T] target ids, rows padded on the right.
        aux_states: [B, T, A * Ht] of the target, in `fc` order.
        num_draft_tokens: K ≥ 1.
        lengths: real tokens of each row.

    Returns:
        [B, T] int64 on the CPU, 0 … K, at most the tokens that the row still has after t + 1.
    """
    num_rows, num = input_ids.shape
    ends = torch.tensor(lengths, device=input_ids.device)[:, None]
    index = torch.arange(num, device=input_ids.device).expand(num_rows, num)
    accepted = torch.zeros(num_rows, num, dtype=torch.int64, device=input_ids.device)
    is_open = torch.ones_like(accepted, dtype=torch.bool)
    for k, step in enumerate(draft.ttt_steps(input_ids, aux_states, num_draft_tokens)):
        is_open = is_open & (index + 2 + k < ends)
        if not bool(is_open.any()):
            break
        guesses = draft.to_target_ids(draft.head(step.normed[is_open]).argmax(-1))
        truth = input_ids.gather(1, (index + 2 + k).clamp(max=num - 1))[is_open]
        is_open = is_open.masked_scatter(is_open, guesses == truth)
        accepted += is_open
    return accepted.cpu()
