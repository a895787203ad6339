"""Accept length on held-out rows while training: what chooses the draft that is kept.

The target's states over the rows are computed at the first replay and kept while they fit; only the draft changes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from eyas.errors import EyasError
from eyas.models.draft import Eagle3Draft
from eyas.models.target import Target
from eyas.records import fingerprint
from eyas.records.eval_record import Figures
from eyas.records.eval_rows import EvalRow, read_eval_rows
from eyas.records.rows import HELD_OUT
from eyas.replay.figures import figures_of
from eyas.replay.replay import replay_states
from eyas.replay.states import LiveStates, States
from eyas.talk import Silent
from eyas.train.optimise.ranks import Ranks

_BATCH_TOKENS = 8192
_KEPT_BYTES = 4 << 30


class HeldOutUnusable(EyasError):
    """The held-out file has no row with the target's answer, or holds another target's."""

    code = "held-out-unusable"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRows:
    """Recorded continuations of the target that are not trained on.

    Attributes:
        path: where they were read.
        fingerprint: of the file.
        rows: at most as many as asked for.
        num_skipped: rows among those read that have no answer.
    """

    path: Path
    fingerprint: str
    rows: tuple[EvalRow, ...]
    num_skipped: int

    @property
    def num_tokens(self) -> int:
        """Prompts and answers."""
        return sum(len(row.prompt_ids) + len(row.response_ids) for row in self.rows)


def find_held_out(given: Path | None, rows_folder: Path) -> Path | None:
    """The file that was given, or the one that `eyas prepare` put beside the rows; None if there is none."""
    beside = rows_folder / HELD_OUT
    return given or (beside if beside.is_file() else None)


def read_held_out(path: Path, most_rows: int, vocab_size: int | None = None) -> HeldOutRows:
    """The first `most_rows` rows of `path` (`records.eval_rows`), prompts without answers left out.

    Args:
        vocab_size: of the target; None where it is not known.

    Raises:
        EvalDataMissing, EvalRowMalformed, EvalDataEmpty: the file.
        HeldOutUnusable: no row has an answer of at least two tokens: there would be no round; or a row holds a token
            id that the target does not have.
    """
    read = read_eval_rows([path], most_rows, flag="--held-out")
    rows = tuple(row for row in read if isinstance(row, EvalRow) and len(row.response_ids) > 1)
    if not rows:
        raise HeldOutUnusable(
            "no held-out row can be replayed",
            str(path),
            f"of {len(read)} rows none has the target's own answer (`response_ids`) of two tokens or more",
            "let the target answer them: `eyas eval DRAFT --target T --data F --save-rows HELD_OUT`",
        )
    highest = max(max(*row.prompt_ids, *row.response_ids) for row in rows)
    if vocab_size is not None and highest >= vocab_size:
        raise HeldOutUnusable(
            f"a held-out row holds the token id {highest}",
            str(path),
            f"the target has {vocab_size} tokens: these are another target's rows",
            "let this target answer them: `eyas eval DRAFT --target T --data F --save-rows HELD_OUT`",
        )
    return HeldOutRows(
        path=path, fingerprint=fingerprint.of_files([path]), rows=rows, num_skipped=len(read) - len(rows)
    )


class KeptStates:
    """States that are computed once per batch of rows and kept, as long as all of them take at most `most_bytes`.

    Args:
        states: where they come from.
        most_bytes: on their device; what comes after is computed each time.
    """

    def __init__(self, states: States, most_bytes: int = _KEPT_BYTES) -> None:
        self._states, self._free = states, most_bytes
        self._kept: dict[tuple[int, ...], Tensor] = {}

    @property
    def vocab_size(self) -> int:
        """See `States.vocab_size`."""
        return self._states.vocab_size

    @property
    def device(self) -> torch.device:
        """See `States.device`."""
        return self._states.device

    def aux(self, rows: Sequence[int], input_ids: Tensor, boundaries: Sequence[int]) -> Tensor:
        """See `States.aux`; the same rows always come with the same boundaries."""
        found = self._kept.get(tuple(rows))
        if found is None:
            found = self._states.aux(rows, input_ids, boundaries)
            size = found.numel() * found.element_size()
            if size <= self._free:
                self._free -= size
                self._kept[tuple(rows)] = found
        return found


@contextmanager
def as_written(draft: nn.Module) -> Iterator[None]:
    """Inside, the parameters hold what a draft's file will hold of them, bf16; afterwards they are as before.

    Rounding decides near-ties: 169 rounds of fp32 masters were 174 of the draft that they had been written to.
    """
    masters = [(parameter, parameter.data) for parameter in draft.parameters()]
    try:
        for parameter, master in masters:
            parameter.data = master.to(torch.bfloat16).to(master.dtype)
        yield
    finally:
        for parameter, master in masters:
            parameter.data = master


class HeldOut:
    """Replays the held-out rows with the draft as it would be written now.

    Args:
        target: frozen.
        rows: what is replayed; each rank takes its share.
        num_draft_tokens: K.
        ranks: all call `measure` together.
    """

    def __init__(self, target: Target, rows: Sequence[EvalRow], num_draft_tokens: int, ranks: Ranks) -> None:
        lengths = [len(row.prompt_ids) + len(row.response_ids) for row in rows]
        self._mine = [rows[i] for i in ranks.share(lengths)]
        self._states = KeptStates(LiveStates(target))
        self._num_draft_tokens, self._ranks = num_draft_tokens, ranks
        self._is_half = target.parts.embedding.dtype == torch.bfloat16

    def measure(self, draft: Eagle3Draft) -> Figures:
        """The figures over all rows, on every rank."""
        batch_tokens = 1 if self._states.device.type == "cpu" else _BATCH_TOKENS
        half = torch.autocast(self._states.device.type, torch.bfloat16, enabled=self._is_half)
        with half, as_written(draft):
            mine = replay_states(
                self._states, draft, self._mine, self._num_draft_tokens, Silent(), batch_tokens=batch_tokens
            )
        everyones = [result for part in self._ranks.gather(mine) for result in part]
        return figures_of(everyones, self._num_draft_tokens)
