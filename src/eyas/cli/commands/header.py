"""`eyas header`: parse, call, render."""

import json as json_module
from pathlib import Path

from eyas.cli.output import JsonFlag, emit


def header(path: Path, /, *, json: JsonFlag = False) -> int:
    """A checkpoint's names, shapes, dtypes, config and integer-map summaries, without weights or absolute paths.

    Made to be attached to a bug report: `eyas header DIR > x.json`; `eyas check x.json` reads it like the folder.

    Parameters
    ----------
    path
        A draft's or target's folder, a .safetensors or .bin file, or a header dump.
    """
    from eyas.contract.files.header_dump import dump_document
    from eyas.contract.files.read_checkpoint import read_checkpoint

    document = dump_document(read_checkpoint(path))
    if json:
        return emit(document, "", json=True)
    # the document is what the command is for: readable, and still one JSON value when redirected to a file
    return emit(document, json_module.dumps(document, indent=1, ensure_ascii=False), json=False)
