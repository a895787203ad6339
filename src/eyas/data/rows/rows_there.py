"""Rows that stand already where some are to be written: the same ones, or others, and then what differs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eyas.data.rows.mixture import DataFile
from eyas.data.rows.row_store import Rows
from eyas.errors import EyasError
from eyas.records.atomic import OutputExists, require_place, require_replaceable
from eyas.records.changes import what_changed
from eyas.records.eval_rows import read_eval_rows
from eyas.records.rows import HELD_OUT, MANIFEST, RowsManifest, RowsUnreadable, read_manifest


def require_free(out: Path, reading: Mapping[str, Any], *, replace: bool) -> None:
    """Raise `OutputExists` or `WriteFailed` where it is sure, before the target has written anything, that no rows can
    be put there.

    Args:
        reading: rules, tokenizer, template and options, by name.
    """
    require_place(out, out.parent)
    if replace or not (out / MANIFEST).exists():
        require_replaceable(out, replace, MANIFEST)
        return
    there = read_manifest(out)
    options = {**there.options, "template_options": dict(there.template_options)}
    then = {"rules": there.rules, "tokenizer": there.tokenizer, "template": there.template, "options": options}
    if then != reading:
        raise _other_rows(out, what_changed(then, reading))


def rows_there(out: Path, whole: str, files: Sequence[DataFile], prints: Sequence[str]) -> RowsManifest:
    """The manifest of the rows that stand in `out`.

    Raises:
        OutputExists: they are not those with the fingerprint `whole`, of `files` with the fingerprints `prints`.
        RowsUnreadable: they are, by their manifest, but the files beside it are not what it says.
    """
    there = read_manifest(out)
    if there.fingerprint == whole:
        Rows(out)
        _require_held_out(out, there.num_held_out)
        return there
    then = {"data": [[source.name, source.fingerprint, source.weight] for source in there.sources]}
    now = {"data": [[file.path.name, print_, file.weight] for file, print_ in zip(files, prints, strict=True)]}
    raise _other_rows(out, what_changed(then, now) if then != now else "the prompts of --exclude are others")


def _require_held_out(out: Path, stated: int) -> None:
    if not stated:
        return
    path = out / HELD_OUT
    try:
        found = len(read_eval_rows([path]))
    except EyasError as error:
        why = f"{error.what}: {error.why}"
    else:
        why = f"{MANIFEST} says {stated} rows held out; {HELD_OUT} has {found}"
        if found == stated:
            return
    raise RowsUnreadable(
        f"the rows in {out} are damaged", str(path), why, "delete the folder and run `eyas prepare` again"
    )


def _other_rows(out: Path, why: str) -> OutputExists:
    return OutputExists(f"{out} holds other rows", str(out), why, "choose another folder, or give --replace")
