"""What the target would have said, reduced to what a draft can learn: its distribution over the draft vocabulary.

Made for some positions at a time and thrown away after use: rows over a vocabulary are the largest tensors of training.
Shapes: C positions, D draft vocabulary, V target vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.models.draft import Eagle3Draft


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftVocabulary:
    """The draft vocabulary on the device.

    Attributes:
        offered: [D] int64 target ids; None when it is the whole vocabulary.
        draft_ids: [V] int64, draft id of each target id, -1 where there is none.
    """

    offered: Tensor | None
    draft_ids: Tensor

    @classmethod
    def of(cls, draft: Eagle3Draft, device: torch.device) -> "DraftVocabulary":
        """That of `draft`."""
        size = draft.spec.draft_vocab_size
        index = torch.arange(size, device=device)
        if not draft.spec.has_vocab_map:
            return cls(offered=None, draft_ids=index)
        offered = draft.to_target_ids(index)
        draft_ids = torch.full((draft.spec.vocab_size,), -1, device=device)
        draft_ids[offered] = index
        return cls(offered=offered, draft_ids=draft_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """The target's distributions at C positions.

    Attributes:
        logits: [C, D], columns of the draft vocabulary alone.
        log_norm: [C] log-sum-exp of `logits`: log p = logits - log_norm.
        log_mass: [C], log of the probability that the target gives to the draft vocabulary as a whole.
        argmax_ids: [C] target ids, over the whole vocabulary.
        argmax_draft: [C] the same as draft ids, -1 where the draft vocabulary does not have it.
    """

    logits: Tensor
    log_norm: Tensor
    log_mass: Tensor
    argmax_ids: Tensor
    argmax_draft: Tensor

    @property
    def log_probs(self) -> Tensor:
        """[C, D], log-softmax over the draft vocabulary alone, fp32 at least."""
        return self.logits.to(self.log_norm.dtype) - self.log_norm.unsqueeze(-1)
