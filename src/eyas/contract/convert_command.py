"""The `eyas convert` command that a finding advises: one that works when typed."""

import shlex
from collections.abc import Sequence

from eyas.contract.renames import Rename


def convert_command(where: str, dialect: str, renames: Sequence[Rename] = ()) -> str:
    """The command line that converts the draft read from `where`.

    A header dump holds no weights to convert: there the draft itself has to be named by the reader.
    """
    source = "DRAFT_FOLDER" if where.endswith(".json") else shlex.quote(where)
    words = "".join(f" --rename {shlex.quote(str(rename))}" for rename in renames)
    return f"eyas convert {source} --to {dialect}{words} OUT"
