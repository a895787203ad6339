"""What the target would have said, reduced to what a draft can learn: its distribution over the draft vocabulary.

Shapes: B rows, T positions, N supervised targets of the batch, D draft vocabulary, V target vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.models.draft import Eagle3Draft
from eyas.models.target import Target

_CHUNK = 256  # positions whose [V] logits exist at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """The target's distributions at the positions whose next token is supervised.

    Attributes:
        index: [B, T]; entry (b, u) says which of the N the target's distribution at position u is (the one over
            token u + 1), -1 where token u + 1 is not supervised.
        log_probs: [N, D], log-softmax over the draft vocabulary alone.
        log_mass: [N], log of the probability that the target gives to the draft vocabulary as a whole.
        argmax_ids: [N] target ids, over the whole vocabulary.
        argmax_draft: [N] the same as draft ids, -1 where the draft vocabulary does not have it.
    """

    index: Tensor
    log_probs: Tensor
    log_mass: Tensor
    argmax_ids: Tensor
    argmax_draft: Tensor


def make_teacher(target: Target, last: Tensor, is_supervised: Tensor, draft: Eagle3Draft) -> Teacher:
    """The teacher of a batch; logits over the whole vocabulary exist for a few positions at a time.

    Args:
        last: [B, T, Ht] after the target's final norm.
        is_supervised: [B, T] bool, of the tokens themselves (padding false).
    """
    wanted = torch.zeros_like(is_supervised)
    wanted[:, :-1] = is_supervised[:, 1:]
    index = torch.full(is_supervised.shape, -1, dtype=torch.int64, device=last.device)
    states = last[wanted]
    index[wanted] = torch.arange(len(states), device=last.device)
    offered = draft.to_target_ids(torch.arange(draft.spec.draft_vocab_size, device=last.device))
    log_probs, log_mass, argmax_ids = [], [], []
    for begin in range(0, len(states), _CHUNK):
        chunk = states[begin : begin + _CHUNK]
        logits = target.logits(chunk).float()
        whole = logits.logsumexp(-1)
        argmax_ids.append(logits.argmax(-1))
        logits = logits[:, offered] if draft.spec.has_vocab_map else logits
        restricted = logits.logsumexp(-1)
        log_mass.append(restricted - whole)
        log_probs.append(logits - restricted[:, None])
    argmax = _cat(argmax_ids, (0,), last).long()
    draft_ids, is_offered = draft.to_draft_ids(argmax)
    return Teacher(
        index=index,
        log_probs=_cat(log_probs, (0, draft.spec.draft_vocab_size), last),
        log_mass=_cat(log_mass, (0,), last),
        argmax_ids=argmax,
        argmax_draft=torch.where(is_offered, draft_ids, -1),
    )


def _cat(parts: list[Tensor], empty: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.cat(parts) if parts else torch.empty(empty, device=like.device)
