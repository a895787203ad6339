"""Accept length on held-out rows while training; it decides which draft is kept.

The target's states over the rows are computed at the first replay and kept as long as they fit.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from eyas.models.draft import Eagle3Draft
from eyas.models.states import StateSource
from eyas.records.eval_record import Figures, RowResult
from eyas.records.eval_rows import EvalRow
from eyas.replay.figures import figures_by_set, figures_of
from eyas.replay.replay import replay_states
from eyas.replay.states import KeptStates, SomeRows
from eyas.talk import Silent
from eyas.train.optimise.ranks import Ranks

_BATCH_TOKENS = 8192


@contextmanager
def as_written(draft: nn.Module) -> Iterator[None]:
    """Inside, the parameters are rounded to bf16 as in a draft's file; afterwards they are as before.

    Rounding decides near-ties: 169 rounds with fp32 weights were 174 with the file written from them.
    """
    masters = [(parameter, parameter.data) for parameter in draft.parameters()]
    try:
        for parameter, master in masters:
            parameter.data = master.to(torch.bfloat16).to(master.dtype)
        yield
    finally:
        for parameter, master in masters:
            parameter.data = master


class HeldOutReplay:
    """Replays the held-out rows with the draft as it would be written now.

    Args:
        states: of the target over these rows.
        dtype: that the target computed them in.
        rows: all rows; each rank replays its share.
        num_draft_tokens: K.
        ranks: all call `measure` together.
    """

    def __init__(
        self, states: StateSource, dtype: torch.dtype, rows: Sequence[EvalRow], num_draft_tokens: int, ranks: Ranks
    ) -> None:
        lengths = [len(row.prompt_ids) + len(row.response_ids) for row in rows]
        numbers = ranks.share(lengths)
        self._mine = [rows[i] for i in numbers]
        self._states = KeptStates(SomeRows(states, numbers))
        self._num_draft_tokens, self._ranks = num_draft_tokens, ranks
        self._is_half = dtype == torch.bfloat16

    def measure(self, draft: Eagle3Draft) -> Figures:
        """The figures over all rows, on every rank."""
        return figures_of(self._results(draft), self._num_draft_tokens)

    def by_set(self, draft: Eagle3Draft) -> dict[str, float]:
        """Accept length by set (kind of text), on every rank."""
        found = figures_by_set(self._results(draft), self._num_draft_tokens)
        return {name: figures.accept_length for name, figures in found.items()}

    def _results(self, draft: Eagle3Draft) -> list[RowResult]:
        batch_tokens = 1 if self._states.device.type == "cpu" else _BATCH_TOKENS
        half = torch.autocast(self._states.device.type, torch.bfloat16, enabled=self._is_half)
        with half, as_written(draft):
            mine = replay_states(
                self._states, draft, self._mine, self._num_draft_tokens, Silent(), batch_tokens=batch_tokens
            )
        return [result for part in self._ranks.gather(mine) for result in part]
