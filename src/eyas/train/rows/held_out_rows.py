"""The held-out rows of a run: recorded answers of the target that are replayed and never trained on."""

from dataclasses import dataclass
from pathlib import Path

from eyas.errors import EyasError
from eyas.records import fingerprint
from eyas.records.eval_rows import EvalRow, read_eval_rows
from eyas.records.rows import HELD_OUT


class HeldOutUnusable(EyasError):
    """The held-out file has no row with an answer of this target."""

    code = "held-out-unusable"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRows:
    """Recorded continuations of the target that are not trained on.

    Attributes:
        path: where they were read.
        fingerprint: of the file.
        rows: at most as many as were asked for.
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
    """The given file, else the one that `eyas prepare` wrote beside the rows, else None."""
    beside = rows_folder / HELD_OUT
    return given or (beside if beside.is_file() else None)


def read_held_out(path: Path, most_rows: int, vocab_size: int | None = None) -> HeldOutRows:
    """The first `most_rows` rows of `path` (`records.eval_rows`), prompts without answers left out.

    Args:
        vocab_size: of the target; None where it is not known.

    Raises:
        EvalDataMissing, EvalRowMalformed, EvalDataEmpty: the file.
        HeldOutUnusable: no row has an answer of at least two tokens, so there would be no round; or a row holds a token
            id that the target does not have.
    """
    read = read_eval_rows([path], most_rows, flag="--held-out")
    rows = tuple(row for row in read if isinstance(row, EvalRow) and len(row.response_ids) > 1)
    if not rows:
        raise HeldOutUnusable(
            "no held-out row can be replayed",
            str(path),
            f"none of its {len(read)} rows has an answer of the target (`response_ids`) of two tokens or more",
            "let the target answer them: `eyas eval DRAFT --target T --data F --save-rows HELD_OUT`",
        )
    highest = max(max(*row.prompt_ids, *row.response_ids) for row in rows)
    if vocab_size is not None and highest >= vocab_size:
        raise HeldOutUnusable(
            f"a held-out row holds the token id {highest}",
            str(path),
            f"the target has {vocab_size} tokens: these rows were made with another target",
            "let this target answer them: `eyas eval DRAFT --target T --data F --save-rows HELD_OUT`",
        )
    return HeldOutRows(
        path=path, fingerprint=fingerprint.of_files([path]), rows=rows, num_skipped=len(read) - len(rows)
    )
