"""The `eyas convert` command that a finding advises: one that works when typed."""

import shlex
from collections.abc import Sequence

from eyas.contract.spec.renames import Rename


def draft_folder(where: str) -> str:
    """The folder of the draft read from `where`, for a command line; a word for it where that was a header dump."""
    return "DRAFT_FOLDER" if where.endswith(".json") else where


def convert_command(where: str, dialect: str, renames: Sequence[Rename] = (), fix: str = "") -> str:
    """The command line that converts the draft read from `where`.

    A header dump holds no weights to convert: there the draft itself has to be named by the reader.
    """
    source = shlex.quote(draft_folder(where))
    words = "".join(f" --rename {shlex.quote(str(rename))}" for rename in renames)
    words += f" --fix {fix}" if fix else ""
    return f"eyas convert {source} --to {dialect}{words} OUT"
