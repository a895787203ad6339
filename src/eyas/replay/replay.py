"""Replay: accept length without a server (docs/replay.md). Chain drafting, greedy drafts, recorded texts."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from eyas.errors import EyasError
from eyas.models.draft import Eagle3Draft, required_boundaries
from eyas.models.states import StateSource, lay_out, to_padded
from eyas.models.target import LiveStates, Target
from eyas.records.eval_record import RowResult
from eyas.records.eval_rows import EvalRow
from eyas.talk import Talk


class RowOutsideVocabulary(EyasError):
    """A recorded token id does not exist in the target."""

    code = "row-outside-vocabulary"


_GPU_BATCH_TOKENS = 16384


def batch_tokens_on(device: torch.device) -> int:
    """Padded tokens of rows that run together unless told otherwise: row by row on a CPU."""
    return 1 if device.type == "cpu" else _GPU_BATCH_TOKENS


def replay(
    target: Target,
    draft: Eagle3Draft,
    rows: Sequence[EvalRow],
    num_draft_tokens: int,
    talk: Talk,
    *,
    batch_tokens: int = 1,
) -> list[RowResult]:
    """`replay_states` with the target itself as the source of states."""
    return replay_states(LiveStates(target), draft, rows, num_draft_tokens, talk, batch_tokens=batch_tokens)


def replay_states(
    states: StateSource,
    draft: Eagle3Draft,
    rows: Sequence[EvalRow],
    num_draft_tokens: int,
    talk: Talk,
    *,
    batch_tokens: int = 1,
) -> list[RowResult]:
    """The rounds that chain drafting would have taken over each recorded text.

    Args:
        states: gives the target's states that the draft reads, once for each text.
        draft: on the same device.
        rows: recorded continuations.
        num_draft_tokens: K ≥ 1, drafts per verify pass.
        batch_tokens: rows of similar length run together up to this many padded tokens (1 = row by row).

    Returns:
        One result a row, in the rows' order.

    Raises:
        AuxBoundariesUnknown: `draft.spec.aux_boundaries` is None.
        RowOutsideVocabulary: a row holds ids that the target does not have.
    """
    counts = replay_depths(states, draft, rows, (num_draft_tokens,), talk, batch_tokens=batch_tokens)
    return counts[num_draft_tokens]


def replay_depths(
    states: StateSource,
    draft: Eagle3Draft,
    rows: Sequence[EvalRow],
    depths: Sequence[int],
    talk: Talk,
    *,
    batch_tokens: int = 1,
) -> dict[int, list[RowResult]]:
    """`replay_states` for several K from one pass: a shallower draft accepts the same tokens, as far as it goes.

    Args:
        depths: each K ≥ 1.

    Returns:
        K -> one result a row.
    """
    required_boundaries(draft)
    for row in rows:
        check_vocabulary(row, states.vocab_size)
    results: dict[int, dict[int, RowResult]] = {k: {} for k in depths}
    with talk.progress("replay", sum(map(_num_tokens, rows)), "tokens") as bar:
        for batch in _batches(rows, batch_tokens):
            accepted = _accepted(states, draft, rows, batch, max(depths))
            for i, marks in zip(batch, accepted, strict=True):
                row = rows[i]
                for k, found in results.items():
                    counts = walk_rounds([min(k, mark) for mark in marks], len(row.prompt_ids), _num_tokens(row))
                    found[i] = RowResult(id=row.id, set=row.set, accepted=counts)
                bar.advance(_num_tokens(row))
    return {k: [found[i] for i in range(len(rows))] for k, found in results.items()}


def _accepted(
    states: StateSource, draft: Eagle3Draft, rows: Sequence[EvalRow], batch: Sequence[int], num_draft_tokens: int
) -> list[list[int]]:
    laid = lay_out([[*rows[i].prompt_ids, *rows[i].response_ids] for i in batch], batch, states.device)
    ids = to_padded(laid, laid.ids)
    aux = to_padded(laid, states(laid, required_boundaries(draft)).aux)
    marks: list[list[int]] = accepted_from_everywhere(draft, ids, aux, num_draft_tokens, laid.lengths[:-1]).tolist()
    return marks


def _batches(rows: Sequence[EvalRow], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of rows of similar length, longest first: memory runs out at the start or never."""
    batch: list[int] = []
    for i in sorted(range(len(rows)), key=lambda i: -_num_tokens(rows[i])):
        if batch and (len(batch) + 1) * _num_tokens(rows[batch[0]]) > batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _num_tokens(row: EvalRow) -> int:
    return len(row.prompt_ids) + len(row.response_ids)


def check_vocabulary(row: EvalRow, vocab_size: int) -> None:
    """Raise `RowOutsideVocabulary` for a row with an id of `vocab_size` or more."""
    largest = max(*row.prompt_ids, *row.response_ids)
    if largest >= vocab_size:
        raise RowOutsideVocabulary(
            f"row {row.id} holds token id {largest}",
            f"row {row.id}",
            f"the target has the ids 0 … {vocab_size - 1}: the rows were recorded with another tokenizer",
            "evaluate on rows that this target wrote, or give prompts (`messages`) and let it answer them",
        )


@torch.no_grad()
def accepted_from_everywhere(
    draft: Eagle3Draft, input_ids: Tensor, aux_states: Tensor, num_draft_tokens: int, lengths: Sequence[int]
) -> Tensor:
    """Accepted drafts when drafting from each index, with greedy drafts and a target that continues as recorded.

    Draft k + 1 from index t is accepted iff drafts 1 … k are and the draft's argmax is token t + 2 + k. As long as all
    before were accepted, what the draft reads as its own tokens *is* the text, so one unrolled pass over all positions
    decides every round that could start anywhere. The head runs only where acceptance is still open.

    Args:
        draft: the draft.
        input_ids: [B, T] target ids, rows padded on the right.
        aux_states: [B, T, A * Ht] of the target, in `fc` order.
        num_draft_tokens: K ≥ 1.
        lengths: real tokens of each row.

    Returns:
        [B, T] int64 on the CPU, 0 … K, at most the tokens that the row still has after t + 1.
    """
    num_rows, num = input_ids.shape
    ends = torch.tensor(lengths, device=input_ids.device)[:, None]
    index = torch.arange(num, device=input_ids.device).expand(num_rows, num)
    accepted = torch.zeros(num_rows, num, dtype=torch.int64, device=input_ids.device)
    is_open = torch.ones_like(accepted, dtype=torch.bool)
    for k, step in enumerate(draft.ttt_steps(input_ids, aux_states, num_draft_tokens)):
        is_open = is_open & (index + 2 + k < ends)
        if not bool(is_open.any()):
            break
        guesses = draft.to_target_ids(draft.head(step.normed[is_open]).argmax(-1))
        truth = input_ids.gather(1, (index + 2 + k).clamp(max=num - 1))[is_open]
        is_open = is_open.masked_scatter(is_open, guesses == truth)
        accepted += is_open
    return accepted.cpu()


def walk_rounds(accepted_from: Sequence[int], num_prompt: int, num_total: int) -> tuple[int, ...]:
    """Accepted drafts of each round over one text.

    The prefill yields the first token of the response, index `num_prompt`; it belongs to no round. A round that starts
    with `newest` known tokens' last index n drafts from the target's state at n - 1, accepts a drafts and gains a + 1
    tokens. Rounds follow until the last recorded token is known. Accepted drafts count only inside the recorded text;
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
