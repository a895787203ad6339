"""What every command shares: the `--json` flag, where text goes, how a document is printed."""

import json as json_module
import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from eyas.errors import ExitCode, EyasError
from eyas.talk import printable

JsonFlag = Annotated[
    bool,
    Parameter(name="--json", negative="", help="Last line of stdout = one JSON object with a `schema` field."),
]


class OutputIsInput(EyasError):
    """A file to write is one that is read, or lies in a folder that is, or something else is written to it."""

    code = "output-is-input"


class OutputLost(EyasError):
    """Standard output cannot be written."""

    code = "output-lost"
    exit_code = ExitCode.ENVIRONMENT


def require_outputs(outputs: Sequence[Path | None], *, read: Sequence[Path] = ()) -> None:
    """Raise, before the work, where a file cannot be written (`WriteFailed`) or would replace another one of these.

    Args:
        read: files, also those that are not there, and folders, into which nothing may be written.

    Raises:
        OutputIsInput: one of `outputs` is among `read`, or in a folder of it, or there twice.
    """
    from eyas.records.atomic import require_ordinary  # 12 ms that most commands do not need

    folders = [path for path in read if os.path.isdir(path)]
    linked = [file for folder in folders for file in folder.iterdir()]  # a model hub's folders hold links
    taken = {os.path.realpath(path) for path in (*read, *linked)}
    for path in outputs:
        if path is None:
            continue
        require_ordinary(path)
        if os.path.realpath(path) in taken or any(_is_within(path, folder) for folder in folders):
            raise OutputIsInput(
                f"{path} would be overwritten",
                str(path),
                "it, or the folder it would lie in, is read by this command, or something else is written there",
                "name another file",
            )
        taken.add(os.path.realpath(path))


def files_of_checkpoint(path: Path) -> tuple[Path, ...]:
    """What is read of a checkpoint: its folder, or a weight file and the config.json beside it."""
    return (path,) if os.path.isdir(path) else (path, path.with_name("config.json"))


def _is_within(path: Path, folder: Path) -> bool:
    # Not the real path of a link in the folder, but that of the folder it lies in.
    at = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return any(Path(place).is_relative_to(os.path.realpath(folder)) for place in (at, os.path.realpath(path)))


def save_document(document: dict[str, Any], out: Path | None) -> None:
    """Write `document` to the file of `--out`, if there is one, as `print_json` prints it but in lines."""
    if out is not None:
        from eyas.records.atomic import write_text

        write_text(out, json_module.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


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
        _print(text, to_stderr=json)
    if json:
        print_json(document)
    return exit_code


def print_json(document: dict[str, Any]) -> None:
    """Print `document` as one line of JSON on stdout; nan and infinity as null."""
    _print(json_module.dumps(_finite(document), ensure_ascii=False, allow_nan=False), to_stderr=False)


def print_part(text: str, *, to_stderr: bool = False, style: str = "") -> None:
    """Print part of a line, so that it is seen at once.

    Args:
        style: numbers of the terminal codes (SGR) that the text is shown in, such as "4" for underlined; "" for none.
    """
    _print(text, to_stderr=to_stderr, end="", style=style)


def _print(text: str, *, to_stderr: bool, end: str = "\n", style: str = "") -> None:
    shown = printable(text)
    if style:  # around each line's part: a terminal may draw what is open at a newline to the edge
        shown = re.sub(r"[^\n]+", lambda part: f"\x1b[{style}m{part[0]}\x1b[0m", shown)
    name, stream = ("stderr", sys.stderr) if to_stderr else ("stdout", sys.stdout)
    if stream is None and not to_stderr:  # closed by the shell (`>&-`): `print` would lose the result without a word
        raise _lost(name, "it is closed")
    try:
        print(shown, file=stream, end=end, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _lost(name, str(error.strerror or error)) from error


def _lost(stream: str, why: str) -> OutputLost:
    return OutputLost(f"cannot write to {stream}", stream, why, "send the output somewhere else")


def use_colour() -> bool:
    """Colours only on a terminal, and never with NO_COLOR."""
    return sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value
