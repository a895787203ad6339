"""A replay of one text that also says which decisions were close: another arithmetic may take those otherwise."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.models.draft import Eagle3Draft

# Logits in bfloat16 have 8 significant bits; states and weights are rounded likewise before. Decisions of SmolLM2's
# draft that fell otherwise in two engines lay within 3 of these steps (benchmarks/parity_h200).
_STEPS = 4
_STEP = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-20}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """What a draft decides along one text of T tokens.

    Attributes:
        accepted: [T] int64 on the CPU, as `replay.accepted_from_everywhere` gives them.
        narrow: [T, K] bool on the CPU: the decision on draft k + 1 from index t was reached (all drafts before it are
            accepted), and the token of the text and its best rival are nearly tied.
    """

    accepted: Tensor
    narrow: Tensor


@torch.no_grad()
def decisions(
    draft: Eagle3Draft, input_ids: Tensor, aux_states: Tensor, num_draft_tokens: int, dtype: str
) -> Decisions:
    """The drafts that are accepted from each index, and the decisions that were close.

    Args:
        draft: the draft.
        input_ids: [1, T] ids of one text.
        aux_states: [1, T, A * Ht], in `fc` order.
        num_draft_tokens: K.
        dtype: that the server computes in.
    """
    num, device = input_ids.shape[1], input_ids.device
    index, is_open = torch.arange(num, device=device), torch.ones(num, dtype=torch.bool, device=device)
    accepted = torch.zeros(num, dtype=torch.int64, device=device)
    narrow = torch.zeros(num, num_draft_tokens, dtype=torch.bool, device=device)
    for k, step in enumerate(draft.ttt_steps(input_ids, aux_states, num_draft_tokens)):
        is_open = is_open & (index + 2 + k < num)
        if not bool(is_open.any()):
            break
        logits = draft.head(step.normed[0, is_open]).float()
        truth = input_ids[0, index[is_open] + 2 + k]
        is_right = draft.to_target_ids(logits.argmax(-1)) == truth
        best, second = logits.topk(2, -1).values.unbind(-1)
        drafted, is_offered = draft.to_draft_ids(truth)
        rival = torch.where(is_right, second, logits.gather(-1, drafted[:, None])[:, 0])
        narrow[is_open, k] = is_offered & (best - rival <= _STEPS * _STEP[dtype] * best.abs())
        is_open = is_open.masked_scatter(is_open, is_right)
        accepted += is_open
    return Decisions(accepted=accepted.cpu(), narrow=narrow.cpu())


def count_on_path(narrow: Tensor, rounds: Sequence[int], num_prompt: int) -> int:
    """Narrow decisions among those that the rounds of one text really took.

    Args:
        narrow: [T, K], see `Decisions`.
        rounds: accepted drafts of each round.
        num_prompt: prompt tokens.
    """
    found, newest = 0, num_prompt
    for accepted in rounds:
        found += int(narrow[newest - 1, : accepted + 1].sum())
        newest += accepted + 1
    return found
