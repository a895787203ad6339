"""A second, independent draft-verify loop: no replay, no engine, no training-time test. One token at a time."""

import torch
from transformers import PreTrainedModel

from eyas.models.draft import Eagle3Draft


@torch.no_grad()
def plain_loop(model: PreTrainedModel, draft: Eagle3Draft, prompt: list[int], num_draft_tokens: int, num_new: int):
    """Greedy speculative decoding that recomputes everything in every round. (Boundary N is another state here.)

    Returns:
        The text (prompt and `num_new` tokens), and accepted drafts per round, counted inside the text.
    """

    def target(ids: list[int]):
        out = model(torch.tensor([ids]), output_hidden_states=True)
        aux = torch.cat([out.hidden_states[b] for b in draft.spec.aux_boundaries], -1)
        return out.logits[0].argmax(-1).tolist(), draft.fuse(aux)

    text, rounds, end = [*prompt, target(prompt)[0][-1]], [], len(prompt) + num_new
    while len(text) < end:
        _, g = target(text)  # states of all known tokens; the newest one's is not known to an engine yet
        cache, known = draft.new_cache(), len(text) - 1
        next_tokens, state = torch.tensor([text[1:]]), g[:, :known]
        positions, drafts = torch.arange(known)[None], []
        for _ in range(num_draft_tokens):
            state, logits = draft.step(next_tokens, state, positions, cache)
            drafts.append(int(draft.to_target_ids(logits[0, -1].argmax(-1))))
            next_tokens, state, positions = torch.tensor([[drafts[-1]]]), state[:, -1:], positions[:, -1:] + 1
        verdict = target(text + drafts)[0][len(text) - 1 :]
        num_accepted = next((k for k, d in enumerate(drafts) if d != verdict[k]), num_draft_tokens)
        gained = verdict[: num_accepted + 1]
        rounds.append(min(num_accepted, end - len(text)))
        text = (text + gained)[:end]
    return text, rounds
