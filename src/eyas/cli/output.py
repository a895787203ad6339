"""What every command shares: the `--json` flag, where text goes, how a document is printed."""

import json as json_module
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
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
    """An output file is also an input, lies in an input folder, or is given twice."""

    code = "output-is-input"


class OutputLost(EyasError):
    """Standard output cannot be written."""

    code = "output-lost"
    exit_code = ExitCode.ENVIRONMENT


def require_outputs(outputs: Sequence[Path | None], *, read: Sequence[Path] = ()) -> None:
    """Check before the work that every output can be written and replaces neither an input nor another output.

    Args:
        read: input files, which need not exist, and input folders.

    Raises:
        WriteFailed: an output cannot be written.
        OutputIsInput: an output is among `read`, in a folder of it, or given twice.
    """
    from eyas.records.atomic import require_ordinary  # imported late: it costs 12 ms, and most commands do not need it

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
                "this command reads it or its folder, or writes something else to it",
                "name another file",
            )
        taken.add(os.path.realpath(path))


def files_of_checkpoint(path: Path) -> tuple[Path, ...]:
    """What a checkpoint consists of: its folder, or a weight file and the config.json beside it."""
    return (path,) if os.path.isdir(path) else (path, path.with_name("config.json"))


def _is_within(path: Path, folder: Path) -> bool:
    # A link counts by the folder that it lies in, not by where it points.
    at = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return any(Path(place).is_relative_to(os.path.realpath(folder)) for place in (at, os.path.realpath(path)))


def save_document(document: dict[str, Any], out: Path | None) -> None:
    """Write `document`, indented, to the file that `--out` names; do nothing for None."""
    if out is not None:
        from eyas.records.atomic import write_text

        text = json_module.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False)
        write_text(out, printable(text) + "\n")  # an undecodable name is written as its escape


@contextmanager
def ends_within_a_second(exit_code: int) -> Iterator[None]:
    """For what is told after an interruption: end the process if it is not read (a full pipe, Ctrl-S)."""
    if threading.current_thread() is not threading.main_thread():  # only there a signal can be handled
        yield
        return
    before = signal.signal(signal.SIGALRM, lambda *_: os._exit(exit_code))
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def emit(document: dict[str, Any], text: str, *, json: bool, exit_code: int = 0, was_interrupted: bool = False) -> int:
    """Print a command's result: `text` on stdout; with `json` the text goes to stderr and the object to stdout.

    Args:
        document: JSON-able, with a `schema` field such as "eyas.check/1"; nan and infinity are printed as null.
        text: the same for people, without a trailing newline.
        exit_code: what the command returns to the shell.
        was_interrupted: whether the user asked for the end: a reader that does not read is then not waited for.

    Returns:
        `exit_code`, so that a command can end with `return emit(...)`.
    """
    assert "schema" in document, "every document names its schema"
    with ends_within_a_second(exit_code) if was_interrupted else nullcontext():
        if text:
            _print(text, to_stderr=json)
        if json:
            print_json(document)
    return exit_code


def print_json(document: dict[str, Any]) -> None:
    """Print `document` as one line of JSON on stdout; nan and infinity as null."""
    _print(json_module.dumps(_finite(document), ensure_ascii=False, allow_nan=False), to_stderr=False)


def print_part(text: str, *, to_stderr: bool = False, style: str = "") -> None:
    """Print part of a line and flush it.

    Args:
        style: numbers of the terminal codes (SGR) that the text is shown in, such as "4" for underlined; "" for none.
    """
    _print(text, to_stderr=to_stderr, end="", style=style)


def _print(text: str, *, to_stderr: bool, end: str = "\n", style: str = "") -> None:
    shown = printable(text)
    if style:  # for each line by itself: a terminal may paint an open style to its edge at a newline
        shown = re.sub(r"[^\n]+", lambda part: f"\x1b[{style}m{part[0]}\x1b[0m", shown)
    name, stream = ("stderr", sys.stderr) if to_stderr else ("stdout", sys.stdout)
    if stream is None and not to_stderr:  # closed by the shell (`>&-`): `print` would lose the result silently
        raise _lost(name, "it is closed")
    try:
        print(shown, file=stream, end=end, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _lost(name, str(error.strerror or error)) from error


def _lost(stream: str, why: str) -> OutputLost:
    return OutputLost(f"cannot write to {stream}", stream, why, "redirect the output to a file that can be written")


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
