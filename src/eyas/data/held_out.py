"""Rows that are set aside for evaluation, and none of whose prompts is trained on."""

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eyas.data.prepare_config import ConfigInvalid
from eyas.data.tokenise import TokenRow
from eyas.records.eval_rows import EvalRow

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SET = "held-out"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A choice among rows.

    Attributes:
        rows: indices set aside, in order.
        trained: indices of the others, without those that share a prompt with one set aside.
        num_shared: rows that are in neither for that reason.
    """

    rows: list[int]
    trained: "NDArray[np.int64]"
    num_shared: int


def prompt_key(row: TokenRow) -> int:
    """A number for what stands before the first supervised token: rows of one prompt have the same."""
    prompt = row.token_ids[: row.is_supervised.index(True)]
    return zlib.crc32(repr(prompt).encode())


def choose_held_out(keys: "NDArray[np.int64]", is_greedy: "NDArray[np.bool_]", num: int) -> HeldOut:
    """Set `num` rows with different prompts aside, greedy ones first, otherwise as their prompts' numbers fall.

    Args:
        keys: `prompt_key` of each row's conversation.
        is_greedy: rows whose answers are known to be the target's greedy ones.

    Raises:
        ConfigInvalid: that would be more than half of the different prompts.
    """
    import numpy as np

    order = np.lexsort((keys, ~is_greedy))
    _, first = np.unique(keys[order], return_index=True)
    if 2 * num > len(first):
        raise ConfigInvalid(
            f"{num} rows cannot be held out",
            f"--held-out {num}",
            f"there are {len(first)} different prompts, and at least half are for training",
            "hold fewer out, or give more data",
        )
    chosen = order[np.sort(first)[:num]]
    is_shared = np.isin(keys, keys[chosen])
    return HeldOut(
        rows=sorted(chosen.tolist()),
        trained=np.flatnonzero(~is_shared),
        num_shared=int(is_shared.sum()) - len(chosen),
    )


def eval_row(row: TokenRow, name: str) -> EvalRow:
    """A row as `eyas eval` reads it: the first answer, and what stands before it."""
    begin = row.is_supervised.index(True)
    end = next((i for i in range(begin, len(row.token_ids)) if not row.is_supervised[i]), len(row.token_ids))
    return EvalRow(id=name, set=SET, prompt_ids=row.token_ids[:begin], response_ids=row.token_ids[begin:end])
