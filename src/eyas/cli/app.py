"""The `eyas` command: registers the commands, each imported only when it runs, and gives the exit code."""

import contextlib
import difflib
import io
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import cyclopts

from eyas import __version__
from eyas.cli.failures import InternalError, Interrupted, UsageError, failure_of
from eyas.cli.output import OutputLost, ends_within_a_second, print_json
from eyas.cli.recipe_file import with_recipe
from eyas.errors import ExitCode, EyasError
from eyas.talk import printable

# command -> what the list of commands says about it; its function has its name, in a module of its name
COMMANDS = {
    "demo": "The main job end to end, on the built-in target.",
    "prepare": "Conversations to tokenised rows with an exact loss mask.",
    "extract": "A target's states over rows, proven, into a store to train from.",
    "store": "Stores of a target's states: verify, stats, merge, drop.",
    "train": "Train an EAGLE-3 draft for a target.",
    "eval": "Accept length of a draft by replay, without a server.",
    "infer": "Which undocumented switches a draft was trained with.",
    "check": "What an engine will do with a draft: every tensor, every key.",
    "convert": "Translate a draft between formats; nothing is dropped silently.",
    "bench": "Speed of plain and speculative decoding, with the ceiling.",
    "tune": "How many draft tokens to use, at which concurrency.",
    "parity": "Does a server accept as many drafts as replay predicts?",
    "chat": "Talk to a target through eyas' own engine, with or without a draft.",
    "report": "One self-contained HTML page of a run.",
    "header": "A checkpoint's names, shapes and config, without weights.",
    "engines": "The load rules that eyas knows, by engine and version.",
    "serve": "Start SGLang, vLLM or TensorRT-LLM with a draft, supervised.",
    "watch": "What a server is doing now, from a URL, a process or a log.",
    "explain": "Why a server accepts what it does: known faults, ranked.",
    "accept": "What a server accepts, from its log or counters, rank by rank.",
}

# Options that hold a path or something else: FILE:2, none.
_PATHS_AS_TEXT = ("--data", "--draft", "--python")

_LARGEST = 2**63 - 1  # what torch and numpy can count
_NARROWEST = 60  # columns of a help page: rich loops for ever when it wraps into one or two


def build_app(full_page_of: str | None = None) -> cyclopts.App:
    """The command tree; nothing of a subcommand is imported yet.

    Args:
        full_page_of: the command whose help page is wanted: it shows the whole docstring of its function. All others
            keep their line of the list, which costs no import.
    """
    app = cyclopts.App(
        name="eyas",
        version=__version__,
        help="EAGLE-3 speculative decoding: prepare, train, eval, check, convert, serve, bench.",
        help_epilogue=(
            "Every command takes its options from `--config FILE` too (YAML, TOML, JSON; a section per command).\n\n"
            "Exit codes: 0 good, 1 findings, 2 usage or config, 3 environment, 4 internal."
        ),
        suppress_keyboard_interrupt=False,  # else cyclopts ends the process itself, without our message
        config=(_refuse_odd_numbers, _expand_home),
        default_parameter=cyclopts.Parameter(show_default=_shown_default),
    )
    for name, help_line in COMMANDS.items():
        function = {"eval": "eval_"}.get(name, name)  # `eval` is Python's own
        shown = {} if name == full_page_of else {"help": help_line}
        app.command(f"eyas.cli.commands.{name}:{function}", name=name, **shown)
    return app


def _shown_default(value: object) -> str | None:
    """What a help page says about a default; nothing about a switch that is off or an empty list."""
    return None if value is None or value is False or value in ("", ()) else str(value)


def _refuse_odd_numbers(app: cyclopts.App, commands: tuple[str, ...], arguments: cyclopts.ArgumentCollection) -> None:
    """Refuse 1.5 for a whole number (cyclopts would round it to 2), numbers too large for a count or seed, and
    digits of other scripts (Python reads them)."""
    for argument in arguments:
        is_whole = _takes(int, argument.hint)
        for token in argument.tokens if is_whole or _takes(float, argument.hint) else ():
            digits = token.value.strip().lstrip("+-").replace("_", "")
            is_large = digits.isdecimal() and (len(digits) > 19 or int(digits) > _LARGEST)
            if not digits.isascii() or (is_whole and ("." in digits or is_large)):
                kind = "a whole number" if is_whole else "a number"
                raise UsageError(
                    f"{token.keyword or argument.name} takes {kind}, not {token.value[:60]}",
                    " ".join(["eyas", *commands, argument.name, token.value[:60]]),
                    _why_odd(digits, is_large),
                    f"see `eyas {' '.join(commands)} --help`",
                )


def _why_odd(digits: str, is_large: bool) -> str:
    if not digits.isascii():
        return "only the digits 0 - 9 are read"
    return f"the largest is {_LARGEST}" if is_large else "rounding it would be a guess"


def _expand_home(_app: cyclopts.App, _commands: tuple[str, ...], arguments: cyclopts.ArgumentCollection) -> None:
    """Expand a leading `~`: shells do not in `--out=~/x`, and no shell reads a recipe."""
    for argument in arguments:
        if _takes(Path, argument.hint) or argument.name in _PATHS_AS_TEXT:
            argument.tokens = [token.evolve(value=os.path.expanduser(token.value)) for token in argument.tokens]


def _takes(kind: type, hint: Any) -> bool:
    """Whether `hint` takes `kind` only: alone, optional or as items."""
    parts = [part for part in get_args(hint) if part not in (type(None), ...)]
    return hint is kind or (bool(parts) and all(_takes(kind, part) for part in parts))


def main(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code. Prints errors in the house's form; never raises."""
    try:
        return _run_command(arguments)
    except BrokenPipeError:
        # The reader of the output is gone (`| head`): end quietly, as other tools do.
        _forget_output()
        return 128 + signal.SIGPIPE
    except SystemExit:
        # rich, which prints the help, ends the process itself when the reader is gone; no command of eyas does
        _forget_output()
        return 128 + signal.SIGPIPE
    except OSError:  # stderr cannot be written: there is nowhere to say it
        _forget_output()
        return int(ExitCode.ENVIRONMENT)
    except KeyboardInterrupt:  # a second one, while the first was being told
        return 128 + signal.SIGINT


def _run_command(arguments: Sequence[str]) -> int:
    if arguments[:1] in (["watch"], ["accept"]):  # "-" is how every tool calls it; our parser takes it for an option
        arguments = ["/dev/stdin" if word == "-" else word for word in arguments]
    as_json = "--json" in _own(arguments)
    try:
        _refuse_unknown_command(arguments)
        app = build_app(full_page_of=_page_wanted(arguments))
        if {"--help", "-h"} & set(_own(arguments)) or not arguments:
            app.console = _help_console()
        result = app(with_recipe(arguments, app), exit_on_error=False, print_error=False, result_action="return_value")
        return int(result) if isinstance(result, int) else int(ExitCode.GOOD)
    except BrokenPipeError:
        raise
    except OutputLost as error:
        _forget_output()
        return _fail(error, as_json=False)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the border of the program: every failure is told
        failure = failure_of(error, arguments)
        if isinstance(failure, Interrupted):
            with ends_within_a_second(128 + signal.SIGINT):
                print(
                    "interrupted: no partial files were left behind; run the same command again to resume",
                    file=sys.stderr,
                )
                if as_json:
                    print_json(failure.as_document())
            return 128 + signal.SIGINT
        if isinstance(failure, InternalError):
            print(printable("".join(traceback.format_exception(error))), file=sys.stderr, end="")
        return _fail(failure, as_json)


def _help_console() -> Any:
    from rich.console import Console

    console = Console()
    return Console(width=_NARROWEST) if console.width < _NARROWEST else console


def _page_wanted(arguments: Sequence[str]) -> str | None:
    own = _own(arguments)
    return own[0] if own and own[0] in COMMANDS and {"--help", "-h"} & set(own) else None


def _forget_output() -> None:
    # What is still buffered cannot be written either; Python would try again when it ends, and complain.
    for stream in (sys.stdout, sys.stderr):
        if stream is None:  # closed from the beginning
            continue
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _own(arguments: Sequence[str]) -> Sequence[str]:
    """The arguments before a bare `--`; those after it belong to an engine."""
    return arguments[: list(arguments).index("--")] if "--" in arguments else arguments


def _refuse_unknown_command(arguments: Sequence[str]) -> None:
    # Before cyclopts: its own message imports every subcommand, torch and all.
    first = arguments[0] if arguments else "--help"
    if first.startswith("-") or first in COMMANDS:
        return
    near = difflib.get_close_matches(first, COMMANDS, n=1)
    raise UsageError(
        f"there is no command {first!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
        " ".join(["eyas", *arguments]),
        f"the commands are {', '.join(COMMANDS)}",
        "see `eyas --help`",
    )


def _fail(error: EyasError, as_json: bool) -> int:
    print(printable(str(error)), file=sys.stderr)
    for note in getattr(error, "__notes__", []):
        print(printable(f"  = note: {note}"), file=sys.stderr)
    if as_json:
        print_json(error.as_document())
    return int(error.exit_code)


def run() -> None:
    """Entry point of the `eyas` script."""
    if sys.stderr is None:  # closed by the shell (`2>&-`): `print` would write to stdout instead
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as we live
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal in another encoding than UTF-8 must not stop eyas
            stream.reconfigure(errors="backslashreplace")
    _guard_library_text()
    code = main(sys.argv[1:])
    if code == 128 + signal.SIGINT:  # everything is closed and told; torch's own end can take seconds
        with ends_within_a_second(128 + signal.SIGINT):
            _forget_output()
        os._exit(code)
    if code:  # told already; a rest in the buffer of a full disk would be told again by Python, with a code of its own
        _forget_output()
    sys.exit(code)


def _guard_library_text() -> None:
    """Make log records and warnings of libraries printable: transformers quotes a foreign config in its own."""
    make, show = logging.getLogRecordFactory(), warnings.formatwarning

    def made(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        with contextlib.suppress(Exception):  # a record whose arguments do not fit is logging's to report
            record.msg, record.args = printable(record.getMessage()), ()
        return record

    logging.setLogRecordFactory(made)
    warnings.formatwarning = lambda *args, **kwargs: printable(show(*args, **kwargs))
