"""The `eyas convert` command that a finding advises: one that works when typed."""

import shlex


def convert_command(where: str, dialect: str) -> str:
    """The command line that converts the draft read from `where`.

    A header dump holds no weights to convert: there the draft itself has to be named by the reader.
    """
    source = "DRAFT_FOLDER" if where.endswith(".json") else shlex.quote(where)
    return f"eyas convert {source} --to {dialect} OUT"
