"""What every command shares: the `--json` flag, where text goes, how a document is printed."""

import json as json_module
import math
import os
import sys
from typing import Annotated, Any

from cyclopts import Parameter

JsonFlag = Annotated[
    bool,
    Parameter(name="--json", negative="", help="Last line of stdout = one JSON object with a `schema` field."),
]


def emit(document: dict[str, Any], text: str, *, json: bool, exit_code: int = 0) -> int:
    """Print a command's result: `text` on stdout; with `json` the text goes to stderr and the object to stdout.

    Args:
        document: JSON-able, with a `schema` field such as "eyas.check/1"; nan and infinity are printed as null.
        text: the same for a person, without a trailing newline.
        exit_code: what the command returns to the shell.

    Returns:
        `exit_code`, so that a command can end with `return emit(...)`.
    """
    assert "schema" in document, "every document names its schema"
    if text:
        print(text, file=sys.stderr if json else sys.stdout, flush=True)
    if json:
        print(json_module.dumps(_finite(document), ensure_ascii=False, allow_nan=False), flush=True)
    return exit_code


def use_colour() -> bool:
    """Colours only on a terminal, and never with NO_COLOR."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value
