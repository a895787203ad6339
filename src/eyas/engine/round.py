"""One round of speculative decoding, in reading order: draft, verify, accept, repair.

Before a round the target has read everything but the newest token, `pending_id`; the draft has read everything that
the target has, and offers its logits for the token after `pending_id`. The same holds after the round. With a depth
of 0 a round is one step of plain decoding. Where depth adapts, rounds are lazy: the draft reads when it is next asked
to draft, so that a plain step costs nothing of the draft.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eyas.decode.chain import DraftToken, Rule
from eyas.engine.sequence_protocols import DraftSequence, TargetSequence

# Asked before each draft: the draft's top probabilities of the drafts before it (and of this one, where its offer is
# already there), and how many drafts there are. False ends drafting.
WantsAnother = Callable[[Sequence[float], int], bool]


@dataclass(slots=True)
class Position:
    """Where the sequence stands between rounds.

    Attributes:
        pending_id: the newest token, not yet read by the target.
        draft_logits: [D] the draft's offer for the token after it; None without a draft, or while it has not read.
        unread: what the target has read and the draft has not: next ids and aux states, pass by pass.
    """

    pending_id: int
    draft_logits: Tensor | None
    unread: list[tuple[tuple[int, ...], Tensor]] = field(default_factory=list)

    def read_later(self, ids: Sequence[int], aux_states: Tensor) -> None:
        """Keep the true states of one pass for the draft; they are copied, since the target reuses its buffers."""
        self.unread.append((tuple(ids), aux_states.clone()))
        self.draft_logits = None

    def catch_up(self, draft: DraftSequence) -> None:
        """Let the draft read all that it has not read."""
        if self.unread:
            ids = [token for some, _ in self.unread for token in some]
            self.draft_logits = draft.read(ids, torch.cat([aux for _, aux in self.unread]))
            self.unread.clear()


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round gained.

    Attributes:
        ids: accepted drafts, then the bonus token.
        num_accepted_drafts: len(ids) - 1.
        num_draft_tokens: how many were drafted.
        confidences: the draft's probability of its most likely token, per draft; empty unless asked for.
    """

    ids: tuple[int, ...]
    num_accepted_drafts: int
    num_draft_tokens: int
    confidences: tuple[float, ...] = ()


def begin(
    target: TargetSequence, draft: DraftSequence | None, rule: Rule, prompt_ids: list[int], *, is_lazy: bool = False
) -> Position:
    """Read the prompt; its first new token belongs to no round."""
    output = target.prefill(prompt_ids)
    position = Position(rule.verify(output.logits, ()).bonus_token, None)
    _repair(draft, position, [*prompt_ids[1:], position.pending_id], output.aux_states, is_lazy)
    return position


def play(
    target: TargetSequence,
    draft: DraftSequence | None,
    rule: Rule,
    position: Position,
    num_draft_tokens: int,
    *,
    wants_another: WantsAnother | None = None,
    is_lazy: bool = False,
) -> RoundResult:
    """Play one round and move `position` on.

    Args:
        num_draft_tokens: drafts, or the most of them where `wants_another` is asked.
        wants_another: ends drafting early; None never does.
        is_lazy: the draft reads this round's states only when it is next asked to draft.
    """
    # Draft: from the second token on, the draft reads its own last state instead of the target's.
    drafts: list[DraftToken] = []
    confidences: list[float] = []
    if num_draft_tokens and draft is not None:
        position.catch_up(draft)
    offer = position.draft_logits
    while len(drafts) < num_draft_tokens:
        assert draft is not None, "drafting needs a draft"
        assert offer is not None, "drafting needs the draft's first offer"
        if drafts:
            if wants_another is not None and not wants_another(confidences, len(drafts)):
                break
            offer = draft.step(drafts[-1].id)
        if wants_another is not None:
            confidences.append(top_probability(offer))
            if not drafts and not wants_another(confidences, 0):
                break
        drafts.append(rule.draft(offer, draft.vocab_index))

    # Verify: one pass over the pending token and all drafts; row k judges draft k + 1.
    draft_ids = [token.id for token in drafts]
    output = target.forward([position.pending_id, *draft_ids])

    # Accept: drafts up to the first that the target would not have chosen, then the target's own token.
    verdict = rule.verify(output.logits, drafts)
    kept = verdict.num_accepted_drafts
    ids = (*draft_ids[:kept], verdict.bonus_token)
    target.truncate(target.length - (len(drafts) - kept))

    # Repair: what the draft wrote from its own states is written again from the target's.
    position.pending_id = verdict.bonus_token
    _repair(draft, position, ids, output.aux_states[: kept + 1], is_lazy)
    return RoundResult(ids, kept, len(drafts), tuple(confidences[: len(drafts)]))


def top_probability(logits: Tensor) -> float:
    """The highest probability under [D] logits."""
    wide = logits.float()
    return float((wide - wide.max()).exp().sum().reciprocal())


def _repair(
    draft: DraftSequence | None, position: Position, ids: Sequence[int], aux_states: Tensor, is_lazy: bool
) -> None:
    if draft is None:
        return
    if is_lazy:
        position.read_later(ids, aux_states)
    else:
        position.draft_logits = draft.read(ids, aux_states)
