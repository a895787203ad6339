"""Which rows are trained on, how often, and which are held out: none of the held-out prompts is trained on."""

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eyas.data.prepare_config import ConfigInvalid
from eyas.data.text.tokenise import TokenRow
from eyas.records.eval_rows import EvalRow

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

from array import array
from collections.abc import Sequence

from eyas.data.rows.mixture import DataFile, times
from eyas.data.rows.row_maker import RowMaker
from eyas.data.rows.row_store import RowArrays, RowWriter
from eyas.records.data_files import read_conversations
from eyas.talk import Talk

SET = "held-out"


@dataclass(frozen=True, slots=True)
class HeldOutChoice:
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
    """A hash of the tokens before the first supervised one: the same for all rows of one prompt."""
    prompt = row.token_ids[: row.is_supervised.index(True)]
    return zlib.crc32(repr(prompt).encode())


def choose_held_out(keys: "NDArray[np.int64]", is_greedy: "NDArray[np.bool_]", num: int) -> HeldOutChoice:
    """Set `num` rows with different prompts aside, greedy ones first, otherwise in order of their prompts' numbers.

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
    return HeldOutChoice(
        rows=sorted(chosen.tolist()),
        trained=np.flatnonzero(~is_shared),
        num_shared=int(is_shared.sum()) - len(chosen),
    )


_FEW_PROMPTS, _HELD_OUT_OF, _MOST_HELD_OUT = 100, 25, 64


def default_held_out(num_prompts: int) -> int:
    """How many rows are set aside of so many different prompts."""
    return 0 if num_prompts < _FEW_PROMPTS else min(_MOST_HELD_OUT, num_prompts // _HELD_OUT_OF)


def eval_row(row: TokenRow, name: str, kind: str = SET) -> EvalRow:
    """A row as `eyas eval` reads it: the first answer, and what stands before it; counted under `kind`."""
    begin = row.is_supervised.index(True)
    end = next((i for i in range(begin, len(row.token_ids)) if not row.is_supervised[i]), len(row.token_ids))
    return EvalRow(id=name, set=kind, prompt_ids=row.token_ids[:begin], response_ids=row.token_ids[begin:end])


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """All rows that can be used, once each.

    Attributes:
        times: how often each is to be taken.
        prompts: a number for each row's conversation: the same for one prompt.
        is_greedy: 1 where the answers are known to be greedy.
    """

    rows: RowArrays
    times: "array[int]"
    prompts: "array[int]"
    is_greedy: bytearray


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """Rows to train on, repeats among them, and rows set aside.

    Attributes:
        notes: what a person should know of the choice.
    """

    rows: RowArrays
    held_out: list[EvalRow]
    notes: tuple[str, ...]


def collect(files: Sequence[DataFile], maker: RowMaker, talk: Talk) -> Collected:
    """Read all files and make their rows."""
    writer, is_greedy = RowWriter(), bytearray()
    how_often, prompts = array("i"), array("q")
    with talk.progress("prepare", None, "records") as bar:
        for conversation, rows in maker.rows(read_conversations([file.path for file in files])):
            bar.advance()
            was_greedy = conversation.temperature == 0 and (conversation.source, conversation.line) not in maker.edited
            for row in rows:
                writer.add(row, conversation.source, conversation.line)
                how_often.append(times(row.token_ids, files[conversation.source].weight))
                prompts.append(prompt_key(rows[0]))
                is_greedy.append(was_greedy and row.num_supervised > 1)
    return Collected(rows=writer.arrays(), times=how_often, prompts=prompts, is_greedy=is_greedy)


def select(
    collected: Collected, files: Sequence[DataFile], num_held_out: int | None, maker: RowMaker, talk: Talk
) -> Selected:
    """Take rows as often as their files' weights say, and set some aside first (None: `default_held_out`).

    Of several files, each is a set of its own among the rows set aside.

    Raises:
        ConfigInvalid: more are to be set aside than half of the prompts.
    """
    import numpy as np

    rows, how_often = collected.rows, np.frombuffer(collected.times, dtype=np.int32)
    trained = np.arange(rows.num_rows)
    held_out, notes = list[EvalRow](), list[str]()
    if num_held_out is None:
        num_prompts = len(np.unique(np.frombuffer(collected.prompts, dtype=np.int64)))
        num_held_out = default_held_out(num_prompts)
        aside = f"{num_held_out} of {num_prompts} prompts" if num_held_out else f"none of only {num_prompts} prompts"
        talk.line(f"held out, so that training can keep its best draft: {aside} (--held-out changes it)")
    if num_held_out:
        is_greedy = np.frombuffer(collected.is_greedy, dtype=np.bool_)
        choice = choose_held_out(np.frombuffer(collected.prompts, dtype=np.int64), is_greedy, num_held_out)
        trained = choice.trained
        for i in choice.rows:
            path = files[rows.files[i]].path
            kind = path.name.partition(".")[0] if len(files) > 1 else SET
            held_out.append(eval_row(rows.row(i), f"{path.name}:{rows.lines[i]}", kind))
        if choice.num_shared:
            maker.dropped["shares its prompt with a held-out row"] += choice.num_shared
        others = num_held_out - int(is_greedy[choice.rows].sum())
        if others:
            notes.append(f"{others} of {num_held_out} held-out rows are not known to be the target's greedy answers")
    thinned = int((how_often[trained] == 0).sum())
    if thinned:
        maker.dropped["left out by its file's weight"] += thinned
    for note in notes:
        talk.note(note)
    if len(trained) < rows.num_rows or any(file.weight != 1 for file in files):
        rows = rows.take(np.repeat(trained, how_often[trained]))
    return Selected(rows=rows, held_out=held_out, notes=tuple(notes))
