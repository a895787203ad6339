"""Which rows each optimiser step sees: a pure function of lengths, options and seed. No data, no global state."""

from collections.abc import Sequence
from dataclasses import dataclass

from eyas.train.config import MAX_STEPS, TrainConfig, TrainConfigInvalid

# Rows of all steps together, each counted as often as it is seen: a plan of about 2 GB.
_MAX_ROWS = 50_000_000


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one optimiser step.

    Attributes:
        rows: indices into the rows.
        num_tokens: their tokens.
    """

    rows: tuple[int, ...]
    num_tokens: int


def plan_batches(lengths: Sequence[int], config: TrainConfig, batch_tokens: int) -> list[Batch]:
    """All steps of a run in order; each pass over the rows has its own order, drawn from (seed, pass).

    A batch takes rows until the next one would exceed `batch_tokens`; a longer row is a batch of its own.

    Args:
        lengths: tokens of each row.
        config: `steps`, `tokens` or `epochs` says where the plan ends.
        batch_tokens: of the rows of a batch together.

    Raises:
        TrainConfigInvalid: more steps, or more rows in them, than a plan holds.
    """
    plan: list[Batch] = []
    num_planned = epoch = 0
    _require_plannable(0, _passes(lengths, config), lengths)
    while not _is_enough(plan, num_planned, epoch, config):
        for batch in _one_pass(lengths, _order(len(lengths), config.seed, epoch), batch_tokens):
            if _is_enough(plan, num_planned, epoch, config):
                break
            plan.append(batch)
            num_planned += batch.num_tokens
        epoch += 1
        _require_plannable(len(plan), epoch, lengths)
    return plan


def _passes(lengths: Sequence[int], config: TrainConfig) -> int:
    """Number of passes over the rows, if it is known before batches are planned."""
    if config.steps is not None:
        return 0
    return config.epochs if config.tokens is None else config.tokens // max(1, sum(lengths))


def _require_plannable(num_steps: int, passes: int, lengths: Sequence[int]) -> None:
    if num_steps <= MAX_STEPS and passes * len(lengths) <= _MAX_ROWS:
        return
    raise TrainConfigInvalid(
        "the run is longer than can be planned",
        f"{passes} passes over {len(lengths)} rows",
        f"a run has at most {MAX_STEPS} steps and sees at most {_MAX_ROWS} rows, repeats counted",
        "give fewer --steps, --tokens or --epochs, or more --batch-tokens; continue from its draft with --init-from",
    )


def _is_enough(plan: Sequence[Batch], num_planned: int, epoch: int, config: TrainConfig) -> bool:
    if config.steps is not None:
        return len(plan) >= config.steps
    if config.tokens is not None:
        return num_planned >= config.tokens
    return epoch >= config.epochs


def _order(num_rows: int, seed: int, epoch: int) -> list[int]:
    import torch

    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order: list[int] = torch.randperm(num_rows, generator=generator).tolist()
    return order


def _one_pass(lengths: Sequence[int], order: Sequence[int], batch_tokens: int) -> list[Batch]:
    batches: list[Batch] = []
    rows: list[int] = []
    num_tokens = 0
    for row in order:
        if rows and num_tokens + lengths[row] > batch_tokens:
            batches.append(Batch(tuple(rows), num_tokens))
            rows, num_tokens = [], 0
        rows.append(row)
        num_tokens += lengths[row]
    if rows:
        batches.append(Batch(tuple(rows), num_tokens))
    return batches
