"""Replay: accept length without a server (docs/replay.md). Chain drafting, greedy drafts, recorded texts."""

from collections.abc import Iterator, Sequence

import torch

from eyas.errors import EyasError
from eyas.models.aux_boundaries import required_boundaries
from eyas.models.draft import Eagle3Draft
from eyas.models.target import Target
from eyas.records.eval_record import RowResult
from eyas.records.eval_rows import EvalRow
from eyas.replay.marks import accepted_from_everywhere
from eyas.replay.rounds import walk_rounds
from eyas.replay.states import LiveStates, States
from eyas.talk import Talk


class RowOutsideVocabulary(EyasError):
    """A recorded token id does not exist in the target."""

    code = "row-outside-vocabulary"


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
    states: States,
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
        batch_tokens: rows of similar length run together up to so many padded tokens (1 = row by row).

    Returns:
        One result a row, in the rows' order.

    Raises:
        AuxBoundariesUnknown: `draft.spec.aux_boundaries` is None.
        RowOutsideVocabulary: a row holds ids that the target does not have.
    """
    required_boundaries(draft)
    for row in rows:
        check_vocabulary(row, states.vocab_size)
    results: dict[int, RowResult] = {}
    with talk.progress("replay", sum(map(_num_tokens, rows)), "tokens") as bar:
        for batch in _batches(rows, batch_tokens):
            accepted = _accepted(states, draft, rows, batch, num_draft_tokens)
            for i, marks in zip(batch, accepted, strict=True):
                row = rows[i]
                counts = walk_rounds(marks, len(row.prompt_ids), _num_tokens(row))
                results[i] = RowResult(id=row.id, set=row.set, accepted=counts)
                bar.advance(_num_tokens(row))
    return [results[i] for i in range(len(rows))]


def _accepted(
    states: States, draft: Eagle3Draft, rows: Sequence[EvalRow], batch: Sequence[int], num_draft_tokens: int
) -> list[list[int]]:
    lengths = [_num_tokens(rows[i]) for i in batch]
    ids = torch.zeros(len(batch), max(lengths), dtype=torch.int64)
    for place, i in enumerate(batch):
        ids[place, : lengths[place]] = torch.tensor([*rows[i].prompt_ids, *rows[i].response_ids])
    ids = ids.to(states.device)
    aux = states.aux(batch, ids, required_boundaries(draft))
    marks: list[list[int]] = accepted_from_everywhere(draft, ids, aux, num_draft_tokens, lengths).tolist()
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
