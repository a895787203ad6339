"""Rows that stand already where some are to be written: the same ones, or others, and then what differs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eyas.data.mixture import DataFile
from eyas.records.atomic import OutputExists, require_replaceable
from eyas.records.changes import what_changed
from eyas.records.rows import MANIFEST, RowsManifest, read_manifest


def require_free(out: Path, reading: Mapping[str, Any], *, replace: bool) -> None:
    """Raise `OutputExists` where it is sure, before the target has written anything, that no rows can be put there.

    Args:
        reading: rules, tokenizer, template and options, by name.
    """
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
    """
    there = read_manifest(out)
    if there.fingerprint == whole:
        return there
    then = {"data": [[source.name, source.fingerprint, source.weight] for source in there.sources]}
    now = {"data": [[file.path.name, print_, file.weight] for file, print_ in zip(files, prints, strict=True)]}
    raise _other_rows(out, what_changed(then, now) if then != now else "the prompts of --exclude are others")


def _other_rows(out: Path, why: str) -> OutputExists:
    return OutputExists(f"{out} holds other rows", str(out), why, "choose another folder, or give --replace")
