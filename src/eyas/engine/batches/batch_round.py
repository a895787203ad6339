"""One round of speculative decoding for many sequences at once, in reading order: draft, verify, accept, repair.

The same round as `round.py`, with drafts of fixed depth and without anything that waits for the device: every
sequence computes all K + 1 rows whatever it accepts. Rows after a rejected draft lie beyond the sequence's length:
no row attends to them, and the next round overwrites them.

Drafts are the draft's argmax. A sequence that samples draws the target's token at each row, with the number that
belongs to the token's place in the text, and keeps a draft that is equal to it (`decode.chain.SampledRule` with greedy
drafts): its text is that of plain sampling with the same seed.

Shapes: B sequences, K drafts, M = K + 1 rows of each, S rows of the batch, A aux states, Ht target hidden, H draft
hidden.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eyas.engine.batches.batch_draft import BatchDraft
from eyas.engine.batches.batch_llama import BatchLlama, upload
from eyas.engine.batches.batch_state import BatchState


class BatchSpeculation:
    """A draft beside a batch's target.

    Args:
        draft: with as many slots as the target.
        aux_boundaries: that it reads, in `fc` order.
        num_draft_tokens: K, at least 1.
        model: the target.
    """

    def __init__(
        self, draft: BatchDraft, aux_boundaries: Sequence[int], num_draft_tokens: int, model: BatchLlama
    ) -> None:
        assert num_draft_tokens >= 1, "a round drafts at least one token"
        self.draft, self.num_draft_tokens, self.model = draft, num_draft_tokens, model
        self.aux_boundaries = tuple(aux_boundaries)
        weights, num_rows = model.weights, model.num_slots + 1
        width = len(self.aux_boundaries) * weights.shape.hidden
        self.aux_states = weights.head.new_zeros(num_rows * (num_draft_tokens + 1), width)
        # Between rounds: the first draft of the next one, and the state that it came from.
        self.first_draft = torch.zeros(num_rows, dtype=torch.int64, device=model.device)
        self.states = weights.head.new_zeros(num_rows, draft.spec.hidden_size)

    @torch.inference_mode()
    def round(self, state: BatchState, num: int, *, all_greedy: bool) -> None:
        """Play a round of the first rows and write what it gained to the state's records."""
        model, draft, lengths = self.model, self.draft, state.lengths[:num]
        num_rows = self.num_draft_tokens + 1

        # Draft: from the second token on, the draft reads its own last state instead of the target's.
        drafts, states = [self.first_draft[:num]], self.states[:num]
        while len(drafts) < self.num_draft_tokens:
            token, states = draft.step(drafts[-1], states, lengths + (len(drafts) - 1))
            drafts.append(token)
        tokens = torch.stack((state.tokens[:num], *drafts), 1)

        # Verify: one pass over the pending token and all drafts; row k judges draft k + 1.
        aux_states = self.aux_states[: num * num_rows]
        logits = model.forward(tokens, lengths, self.aux_boundaries, aux_states)

        # Accept: drafts up to the first that is not the target's own token, then that one.
        if all_greedy:
            choices = logits.argmax(-1).view(num, num_rows)
        else:
            uniform = state.uniforms_of(num, num_rows).flatten()
            choices = model.ops.draw(logits, state.settings(num, num_rows), uniform).view(num, num_rows)
        accepted = (tokens[:, 1:] == choices[:, :-1]).cumprod(1).sum(1)
        bonus = choices.gather(1, accepted[:, None])[:, 0]

        # Repair: what the draft wrote from its own states is written again from the target's.
        rows = torch.arange(num, device=accepted.device) * num_rows + accepted
        self.first_draft[:num], self.states[:num] = draft.read(choices, aux_states, lengths, rows)
        state.advance(num, bonus, accepted + 1, torch.cat(((accepted + 1)[:, None], choices), 1))

    @torch.inference_mode()
    def join(self, prompts: Sequence[Sequence[int]], slots: Sequence[int], aux_states: Tensor, first: Tensor) -> None:
        """Read prompts that the target has read; `first` [B] follows them."""
        rows = upload(slots, first.device)
        offered, states = self.draft.prefill([p[1:] for p in prompts], slots, aux_states, first)
        self.first_draft[rows], self.states[rows] = offered, states

    @torch.inference_mode()
    def move(self, sources: Sequence[int], to: Sequence[int], length: int) -> None:
        """Sequences change rows."""
        self.draft.move(sources, to, length)
        source_rows, to_rows = (upload(rows, self.states.device) for rows in (sources, to))
        for tensor in (self.first_draft, self.states):
            tensor[to_rows] = tensor[source_rows]
