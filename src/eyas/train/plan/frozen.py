"""What `--freeze-head` and `--freeze-embedding` hold still in a draft: exactly what they say, or it is told."""

from eyas.contract.spec.draft_spec import DraftSpec
from eyas.models.draft import Eagle3Draft
from eyas.train.config import TrainConfig, TrainConfigInvalid


def freeze_notes(spec: DraftSpec, config: TrainConfig, where: str) -> tuple[str, ...]:
    """What to say where an option freezes nothing.

    Args:
        where: the draft, for the message.

    Raises:
        TrainConfigInvalid: head and embedding are one trained tensor and only one of them is to be frozen: that would
            freeze nothing, or more than was said.
    """
    is_tied = spec.head == "tied" and spec.embedding == "own"
    if is_tied and config.freeze_head != config.freeze_embedding:
        given = "--freeze-head" if config.freeze_head else "--freeze-embedding"
        raise TrainConfigInvalid(
            "the draft's head and its embedding are one tensor, and only one of them is to be frozen",
            f"{given} for {where}",
            "the head is tied to the embedding: one of the two cannot be trained without the other",
            "give both --freeze-head and --freeze-embedding, or neither",
        )
    notes = []
    if config.freeze_head and spec.head != "own" and not is_tied:
        owner = "the target's" if spec.head == "target" else "the target's embedding"
        notes.append(f"--freeze-head has nothing to freeze: the draft's head is {owner}, which is never trained")
    if config.freeze_embedding and spec.embedding != "own":
        notes.append("--freeze-embedding has nothing to freeze: the draft's embedding is the target's, never trained")
    return tuple(notes)


def freeze(draft: Eagle3Draft, config: TrainConfig) -> Eagle3Draft:
    """`draft`, its parts that are to stay frozen; `freeze_notes` has refused what cannot be."""
    if config.freeze_head and draft.lm_head is not None:
        draft.lm_head.requires_grad_(False)
    if config.freeze_embedding and draft.embed_tokens is not None:
        draft.embed_tokens.requires_grad_(False)
    return draft
