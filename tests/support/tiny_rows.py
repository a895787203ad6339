"""A tiny draft with its target, and random rows for them."""

import torch

from eyas.data.text.tokenise import TokenRow
from eyas.models.draft import Eagle3Draft
from eyas.models.target import Target
from eyas.train.preflight.starting_draft import initialise
from tiny_draft import tiny_spec
from tiny_target import tiny_target

V, D = 64, 24


def rows_of(*lengths: int, seed: int = 0) -> list[TokenRow]:
    """Random rows; about two thirds of the tokens supervised, in stretches, as in a conversation."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for length in lengths:
        ids = torch.randint(3, V, (length,), generator=generator).tolist()
        flags = (torch.arange(length) % 9 >= 3).tolist()
        rows.append(TokenRow(tuple(ids), tuple(flags)))
    return rows


def tiny(draft_vocab_size: int = D) -> tuple[Eagle3Draft, Target]:
    """New, with a draft vocabulary of every second token."""
    target = Target(tiny_target("llama", seed=3))
    spec = tiny_spec(
        target_hidden_size=32,
        vocab_size=V,
        draft_vocab_size=draft_vocab_size,
        embedding="target",
        aux_boundaries=(1, 2, 3),
    )
    draft = Eagle3Draft(spec, target_embedding=target.parts.embedding)
    if draft.spec.has_vocab_map:
        draft.set_vocab_map(torch.arange(0, V, 2)[:draft_vocab_size])
    initialise(draft, target.frozen, seed=0)
    return draft, target
