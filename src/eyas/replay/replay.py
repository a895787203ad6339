"""Replay: accept length without a server (docs/replay.md). Chain drafting, greedy drafts, recorded texts."""

from collections.abc import Iterator, Sequence

import torch

from eyas.errors import EyasError
from eyas.models.draft import Eagle3Draft
from eyas.models.target import Target
from eyas.records.eval_record import RowResult
from eyas.records.eval_rows import EvalRow
from eyas.replay.marks import accepted_from_everywhere
from eyas.replay.rounds import walk_rounds
from eyas.talk import Talk


class RowOutsideVocabulary(EyasError):
    """A recorded token id does not exist in the target."""

    code = "row-outside-vocabulary"


class AuxBoundariesUnknown(EyasError):
    """Nothing says which of the target's states the draft reads."""

    code = "aux-boundaries-unknown"


def replay(
    target: Target,
    draft: Eagle3Draft,
    rows: Sequence[EvalRow],
    num_draft_tokens: int,
    talk: Talk,
    *,
    batch_tokens: int = 1,
) -> list[RowResult]:
    """The rounds that chain drafting would have taken over each recorded text.

    Args:
        target: gives the states that the draft reads; it runs once over each text.
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
    boundaries = draft.spec.aux_boundaries
    if boundaries is None:
        raise AuxBoundariesUnknown(
            "the draft does not say which target states it reads",
            "config.json: eagle_aux_hidden_state_layer_ids",
            "fed other states than it was trained on, a draft accepts next to nothing",
            "write the ids into its config, or name the target with --target so that the default can be computed",
        )
    for row in rows:
        _check_vocabulary(row, target.vocab_size)
    results: dict[int, RowResult] = {}
    with talk.progress("replay", sum(map(_num_tokens, rows)), "tokens") as bar:
        for batch in _batches(rows, batch_tokens):
            accepted = _accepted(target, draft, [rows[i] for i in batch], boundaries, num_draft_tokens)
            for i, marks in zip(batch, accepted, strict=True):
                row = rows[i]
                counts = walk_rounds(marks, len(row.prompt_ids), _num_tokens(row))
                results[i] = RowResult(id=row.id, set=row.set, accepted=counts)
                bar.advance(_num_tokens(row))
    return [results[i] for i in range(len(rows))]


def _accepted(
    target: Target, draft: Eagle3Draft, rows: Sequence[EvalRow], boundaries: Sequence[int], num_draft_tokens: int
) -> list[list[int]]:
    lengths = [_num_tokens(row) for row in rows]
    ids = torch.zeros(len(rows), max(lengths), dtype=torch.int64)
    for i, row in enumerate(rows):
        ids[i, : lengths[i]] = torch.tensor([*row.prompt_ids, *row.response_ids])
    ids = ids.to(target.device)
    states = target.forward(ids, boundaries)
    marks = accepted_from_everywhere(draft, ids, states.aux, num_draft_tokens, lengths)
    rows_of_marks: list[list[int]] = marks.tolist()
    return rows_of_marks


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


def _check_vocabulary(row: EvalRow, vocab_size: int) -> None:
    largest = max(*row.prompt_ids, *row.response_ids)
    if largest >= vocab_size:
        raise RowOutsideVocabulary(
            f"row {row.id} holds token id {largest}",
            f"row {row.id}",
            f"the target has the ids 0 … {vocab_size - 1}: the rows were recorded with another tokenizer",
            "evaluate on rows that this target wrote, or give prompts (`messages`) and let it answer them",
        )
