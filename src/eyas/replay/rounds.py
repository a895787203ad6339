"""The walk over a recorded text: where rounds start and what each accepts. Knows no model."""

from collections.abc import Sequence


def walk_rounds(accepted_from: Sequence[int], num_prompt: int, num_total: int) -> tuple[int, ...]:
    """Accepted drafts of each round over one text.

    The prefill yields the first token of the response, index `num_prompt`; it belongs to no round. A round that starts
    with `newest` known tokens' last index n drafts from the target's state at n - 1, accepts a drafts and gains a + 1
    tokens. Rounds go on until the last recorded token is known. Accepted drafts count only inside the recorded text;
    every round counts its bonus token, also the last, where it may lie one token beyond.

    Args:
        accepted_from: entry t = drafts accepted when drafting from the target's state at index t (they stand at
            t + 2, t + 3 …), at most those inside the text.
        num_prompt: prompt tokens.
        num_total: prompt and response tokens.

    Returns:
        One count per round; empty when the response is a single token.
    """
    rounds, newest = [], num_prompt
    while newest < num_total - 1:
        accepted = accepted_from[newest - 1]
        assert 0 <= accepted <= num_total - 1 - newest, "accepted drafts lie inside the recorded text"
        rounds.append(accepted)
        newest += accepted + 1
    return tuple(rounds)
