"""The draft before the first step: a new one, or the one that `--init-from` names."""

import torch

from eyas.models.draft import Eagle3Draft
from eyas.models.load_draft import load_draft
from eyas.models.placement import Placement
from eyas.models.target import FrozenParts
from eyas.talk import Talk
from eyas.train.config import TrainConfig
from eyas.train.preflight.train_plan import TrainPlan
from eyas.train.request import TrainRequest

# Of the linear layers; what Llama and the EAGLE code start from.
_INIT_STD = 0.02


def starting_draft(
    request: TrainRequest, config: TrainConfig, plan: TrainPlan, teacher: FrozenParts, talk: Talk
) -> Eagle3Draft:
    """The draft in fp32 on the teacher's device, in training mode; the same on every rank."""
    embedding, head = teacher.embedding, teacher.head
    if request.init_from is not None:
        draft = load_draft(
            request.init_from,
            Placement(torch.float32, teacher.device),
            target_spec=plan.target,
            target_embedding=embedding,
            target_head=head,
            talk=talk,
        )
        return freeze(draft, config).train()
    assert plan.vocabulary is not None, "a new draft has a new vocabulary"
    draft = Eagle3Draft(plan.spec, target_embedding=embedding, target_head=head).to(teacher.device)
    draft.set_vocab_map(torch.tensor(plan.vocabulary.ids, device=teacher.device))
    initialise(draft, teacher, config.seed)
    return freeze(draft, config).train()


@torch.no_grad()
def initialise(draft: Eagle3Draft, teacher: FrozenParts, seed: int) -> None:
    """Fill a new draft in place: normal weights, norms of one; its own head and embedding from the target's rows.

    The head keeps the directions of the target's and is scaled down to the spread of the other weights: at full size it
    is confidently wrong at first (on SmolLM2 the first loss is 72 instead of 32, and learning starts later).
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)
    for parameter in draft.parameters():
        if parameter.ndim >= 2:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * _INIT_STD)
    if draft.embed_tokens is not None:
        draft.embed_tokens.weight.copy_(teacher.embedding.to(draft.embed_tokens.weight.dtype))
    if draft.lm_head is not None:
        offered = draft.to_target_ids(torch.arange(draft.spec.draft_vocab_size, device=teacher.device))
        rows = teacher.head[offered].to(draft.lm_head.weight.dtype)
        draft.lm_head.weight.copy_(rows * (_INIT_STD / rows.std()))


def freeze(draft: Eagle3Draft, config: TrainConfig) -> Eagle3Draft:
    """`draft` with the parts frozen that `config` names; `freeze_notes` has refused what cannot be frozen."""
    if config.freeze_head and draft.lm_head is not None:
        draft.lm_head.requires_grad_(False)
    if config.freeze_embedding and draft.embed_tokens is not None:
        draft.embed_tokens.requires_grad_(False)
    return draft
