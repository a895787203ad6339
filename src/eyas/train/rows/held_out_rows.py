"""The held-out rows of a run: recorded answers of the target that are replayed and never trained on."""

from dataclasses import dataclass, field
from pathlib import Path

from eyas.errors import EyasError
from eyas.records import fingerprint
from eyas.records.eval_rows import EvalRow, read_eval_rows
from eyas.records.rows import HELD_OUT
from eyas.replay.probe_pack import ProbePack, read_probe


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
        num_skipped: rows among those read that have no answer, or no states.
        pack: their states, where they come from a probe pack.
    """

    path: Path
    fingerprint: str
    rows: tuple[EvalRow, ...]
    num_skipped: int
    pack: ProbePack | None = field(default=None, repr=False)

    @property
    def num_tokens(self) -> int:
        """Prompts and answers."""
        return sum(len(row.prompt_ids) + len(row.response_ids) for row in self.rows)


def find_held_out(given: Path | None, rows_folder: Path | None) -> Path | None:
    """The given file, else the one that `eyas prepare` wrote beside the rows, else None."""
    if given is not None or rows_folder is None:
        return given
    beside = rows_folder / HELD_OUT
    return beside if beside.is_file() else None


def read_held_out_pack(path: Path, most_rows: int, target_fingerprint: str) -> HeldOutRows:
    """The first `most_rows` rows of a probe pack, with their states.

    Raises:
        ProbeUnreadable: it is not a pack.
        HeldOutUnusable: it is of another target.
    """
    pack = read_probe(path)
    if (theirs := pack.about.target.get("fingerprint")) != target_fingerprint:
        raise HeldOutUnusable(
            "the probe pack is of another target",
            str(path),
            f"config fingerprints: pack {theirs}, target {target_fingerprint}",
            "make one of this target: `eyas eval DRAFT --target T --data F --write-probe PACK`",
        )
    rows = tuple(pack.rows[:most_rows])
    return HeldOutRows(path=path, fingerprint=pack.about.fingerprint, rows=rows, num_skipped=0, pack=pack)


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
