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

    A batch takes rows until the next one would exceed its size; a longer row is a batch of its own. That size is
    `batch_tokens`, or grows to it over the first half of the run (`config.batch_ramp`).

    Args:
        lengths: tokens of each row.
        config: `steps`, `tokens` or `epochs` says where the plan ends.
        batch_tokens: of the rows of a batch together.

    Raises:
        TrainConfigInvalid: more steps, or more rows in them, than a plan holds.
    """
    plan: list[Batch] = []
    num_planned = epoch = 0
    sum_of_lengths = sum(lengths)
    _require_plannable(0, _passes(lengths, config), lengths)
    while not _is_enough(plan, num_planned, epoch, config):
        order, at = _order(len(lengths), config.seed, epoch), 0
        while at < len(order) and not _is_enough(plan, num_planned, epoch, config):
            done = _share_done(len(plan), num_planned, sum_of_lengths, config)
            batch = _next_batch(lengths, order, at, round(batch_tokens * _ramp(done, config.batch_ramp)))
            plan.append(batch)
            at += len(batch.rows)
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


def _share_done(num_steps: int, num_tokens: int, tokens_a_pass: int, config: TrainConfig) -> float:
    """Of the run, before its next step."""
    if config.steps is not None:
        return num_steps / config.steps
    return num_tokens / max(1, config.tokens or tokens_a_pass * config.epochs)


def _ramp(done: float, start: float) -> float:
    """The share of the full size where a share `done` of the run is over."""
    return min(1.0, start + (1.0 - start) * 2.0 * done)


def _next_batch(lengths: Sequence[int], order: Sequence[int], at: int, batch_tokens: int) -> Batch:
    """Rows of `order` from `at` on."""
    end, num_tokens = at, 0
    while end < len(order) and (end == at or num_tokens + lengths[order[end]] <= batch_tokens):
        num_tokens += lengths[order[end]]
        end += 1
    return Batch(tuple(order[at:end]), num_tokens)
