"""One round of speculative decoding, in reading order: draft, verify, accept, repair.

Before a round the target has read everything but the newest token, `pending_id`; the draft has read everything that
the target has, and offers its logits for the token after `pending_id`. The same holds after the round. With a depth
of 0 a round is one step of plain decoding.
"""

from dataclasses import dataclass

from torch import Tensor

from eyas.decode.chain import DraftToken, Rule
from eyas.engine.runner import Draft, Target


@dataclass(slots=True)
class Position:
    """Where the sequence stands between rounds.

    Attributes:
        pending_id: the newest token, not yet read by the target.
        draft_logits: [D] the draft's offer for the token after it; None without a draft.
    """

    pending_id: int
    draft_logits: Tensor | None


@dataclass(frozen=True, slots=True)
class Round:
    """What a round gained.

    Attributes:
        ids: accepted drafts, then the bonus token.
        num_accepted_drafts: len(ids) - 1.
        num_draft_tokens: how many were drafted.
    """

    ids: tuple[int, ...]
    num_accepted_drafts: int
    num_draft_tokens: int


def begin(target: Target, draft: Draft | None, rule: Rule, prompt_ids: list[int]) -> Position:
    """Read the prompt; its first new token belongs to no round."""
    output = target.prefill(prompt_ids)
    first_id = rule.verify(output.logits, ()).bonus_token
    offer = draft.read([*prompt_ids[1:], first_id], output.aux_states) if draft else None
    return Position(first_id, offer)


def play(target: Target, draft: Draft | None, rule: Rule, position: Position, num_draft_tokens: int) -> Round:
    """Play one round and move `position` on."""
    # Draft: from the second token on, the draft reads its own last state instead of the target's.
    drafts: list[DraftToken] = []
    offer = position.draft_logits
    while len(drafts) < num_draft_tokens:
        assert draft is not None, "drafting needs a draft"
        assert offer is not None, "drafting needs the draft's first offer"
        if drafts:
            offer = draft.step(drafts[-1].id)
        drafts.append(rule.draft(offer, draft.vocab_index))

    # Verify: one pass over the pending token and all drafts; row k judges draft k + 1.
    draft_ids = [token.id for token in drafts]
    output = target.forward([position.pending_id, *draft_ids])

    # Accept: drafts up to the first that the target would not have chosen, then the target's own token.
    verdict = rule.verify(output.logits, drafts)
    kept = verdict.num_accepted_drafts
    ids = (*draft_ids[:kept], verdict.bonus_token)
    target.truncate(target.length - (num_draft_tokens - kept))

    # Repair: what the draft wrote from its own states is written again from the target's.
    position.pending_id = verdict.bonus_token
    position.draft_logits = draft.read(ids, output.aux_states[: kept + 1]) if draft else None
    return Round(ids, kept, num_draft_tokens)
