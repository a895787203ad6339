"""The draft before the first step: a new one, or one that is gone on from."""

import torch

from eyas.models.draft import Eagle3Draft
from eyas.models.load_draft import load_draft
from eyas.models.placement import Placement
from eyas.models.target import Target
from eyas.talk import Talk
from eyas.train.config import TrainConfig
from eyas.train.plan.frozen import freeze
from eyas.train.plan.initialise import initialise
from eyas.train.plan.plan import TrainPlan
from eyas.train.request import TrainRequest


def starting_draft(
    request: TrainRequest, config: TrainConfig, plan: TrainPlan, target: Target, talk: Talk
) -> Eagle3Draft:
    """In fp32 on the target's device, in training mode; the same on every rank."""
    embedding, head = target.parts.embedding, target.parts.head
    if request.init_from is not None:
        draft = load_draft(
            request.init_from,
            Placement(torch.float32, target.device),
            target_spec=plan.target,
            target_embedding=embedding,
            target_head=head,
            talk=talk,
        )
        return freeze(draft, config).train()
    assert plan.vocabulary is not None, "a new draft has a new vocabulary"
    draft = Eagle3Draft(plan.spec, target_embedding=embedding, target_head=head).to(target.device)
    draft.set_vocab_map(torch.tensor(plan.vocabulary.ids, device=target.device))
    initialise(draft, target, config.seed)
    return freeze(draft, config).train()
