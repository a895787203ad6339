"""How close the draft's decisions were along a replayed text: which of them another arithmetic may take otherwise."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eyas.models.draft import Eagle3Draft

# Logits in bfloat16 have 8 significant bits; states and weights are rounded likewise before. Decisions of SmolLM2's
# draft that fell otherwise in two engines lay within 3 of these steps (benchmarks/parity_h200).
_STEPS = 4
_STEP = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-20}


@torch.no_grad()
def narrow_decisions(
    draft: Eagle3Draft, input_ids: Tensor, aux_states: Tensor, num_draft_tokens: int, num_tokens: int, dtype: str
) -> Tensor:
    """Where the token of the text and the draft's best other token are nearly tied.

    Args:
        draft: the draft.
        input_ids: [1, T] ids of one text.
        aux_states: [1, T, A * Ht], in `fc` order.
        num_draft_tokens: K.
        num_tokens: of the text.
        dtype: that the server computes in.

    Returns:
        [T, K] bool on the CPU: the decision on draft k + 1 from index t is narrow.
    """
    num = input_ids.shape[1]
    narrow = torch.zeros(num, num_draft_tokens, dtype=torch.bool)
    index = torch.arange(num, device=input_ids.device)
    for k, step in enumerate(draft.ttt_steps(input_ids, aux_states, num_draft_tokens)):
        inside = index + 2 + k < num_tokens
        if not bool(inside.any()):
            break
        logits = draft.head(step.normed[0, inside]).float()
        best, guesses = logits.topk(2, -1)
        guessed = draft.to_target_ids(guesses)
        truth = input_ids[0].gather(0, (index + 2 + k).clamp(max=num - 1))[inside]
        is_close = best[:, 0] - best[:, 1] <= _STEPS * _STEP[dtype] * best[:, 0].abs()
        concerns_truth = (guessed == truth[:, None]).any(-1)
        narrow[inside.cpu(), k] = (is_close & concerns_truth).cpu()
    return narrow


def count_on_path(narrow: Tensor, rounds: Sequence[int], num_prompt: int) -> int:
    """Narrow decisions among those that the rounds of one text really took.

    Args:
        narrow: [T, K], see `narrow_decisions`.
        rounds: accepted drafts of each round.
        num_prompt: prompt tokens.
    """
    found, newest = 0, num_prompt
    for accepted in rounds:
        found += int(narrow[newest - 1, : accepted + 1].sum())
        newest += accepted + 1
    return found
