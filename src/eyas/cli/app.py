"""The `eyas` command: registers the subcommands (each imported only when it runs) and maps errors to exit codes."""

import contextlib
import difflib
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import cyclopts

from eyas import __version__
from eyas.cli.output import OutputLost, print_json
from eyas.cli.recipe_file import with_recipe
from eyas.cli.synonyms import meant
from eyas.errors import ExitCode, EyasError
from eyas.talk import printable

# command -> what the list of commands says about it; its function has its name, in a module of its name
COMMANDS = {
    "demo": "The main job, end to end, on the built-in target.",
    "prepare": "Conversations to tokenised rows with an exact loss mask.",
    "train": "Train an EAGLE-3 draft for a target.",
    "eval": "Accept length of a draft by replay, without a server.",
    "infer": "Which undocumented switches a draft was trained with.",
    "check": "What an engine will do with a draft: every tensor, every key.",
    "convert": "Translate a draft between formats, nothing dropped in silence.",
    "bench": "Plain against speculative decoding, measured beside the ceiling.",
    "parity": "Does a server accept what the draft's replay says?",
    "chat": "Talk to a target through our own engine, with or without a draft.",
    "report": "One self-contained HTML page of a run.",
    "header": "A checkpoint's names, shapes and config, without weights.",
    "engines": "The load rules known, by engine and version.",
    "serve": "Start SGLang or vLLM with a draft, checked and supervised.",
    "watch": "What a server is doing now: a URL, a process or a log.",
}

# Options that hold a path and may hold something else: FILE:2, none.
_PATHS_AS_TEXT = ("--data", "--draft", "--python")

# Packages of the extra `torch`: their absence is the user's to mend, not a bug.
_TORCH_EXTRA = {"torch", "transformers", "gguf", "safetensors", "tokenizers", "numpy"}


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
        config=(_refuse_fractions, _expand_home),
        default_parameter=cyclopts.Parameter(show_default=_shown_default),
    )
    for name, help_line in COMMANDS.items():
        function = {"eval": "eval_"}.get(name, name)  # `eval` is Python's own
        shown = {} if name == full_page_of else {"help": help_line}
        app.command(f"eyas.cli.commands.{name}:{function}", name=name, **shown)
    return app


def _shown_default(value: object) -> str | None:
    """What a help page tells of a default; a switch that is off and an empty list are what one expects."""
    return None if value is None or value is False or value in ("", ()) else str(value)


def _refuse_fractions(app: cyclopts.App, commands: tuple[str, ...], arguments: cyclopts.ArgumentCollection) -> None:
    """A whole number is written without a point: cyclopts itself would round 1.5 to 2."""
    for argument in arguments:
        if not _takes(int, argument.hint):
            continue
        for token in argument.tokens:
            if "." in token.value:
                raise UsageError(
                    f"{token.keyword or argument.name} takes a whole number, not {token.value}",
                    " ".join(["eyas", *commands, argument.name, token.value]),
                    "it counts something, and rounding would be a guess",
                    f"see `eyas {' '.join(commands)} --help`",
                )


def _expand_home(_app: cyclopts.App, _commands: tuple[str, ...], arguments: cyclopts.ArgumentCollection) -> None:
    """`~` at the beginning of a path, which a shell leaves alone in `--out=~/x`, and nobody reads in a recipe."""
    for argument in arguments:
        if _takes(Path, argument.hint) or argument.name in _PATHS_AS_TEXT:
            argument.tokens = [token.evolve(value=os.path.expanduser(token.value)) for token in argument.tokens]


def _takes(kind: type, hint: Any) -> bool:
    """`kind`, alone, optional or as items; not where something else would do too."""
    parts = [part for part in get_args(hint) if part not in (type(None), ...)]
    return hint is kind or (bool(parts) and all(_takes(kind, part) for part in parts))


def main(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code. Prints errors in the house's form; never raises."""
    try:
        return _run_command(arguments)
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): quiet, as other tools are.
        _forget_output()
        return 128 + signal.SIGPIPE
    except SystemExit:
        # rich, which prints the help, ends the process itself when the reader has gone; no command of ours does
        _forget_output()
        return 128 + signal.SIGPIPE
    except OSError:  # of a stderr that cannot be written: there is nowhere to say it
        _forget_output()
        return int(ExitCode.ENVIRONMENT)
    except KeyboardInterrupt:  # again, while the first one was being told
        return 128 + signal.SIGINT


def _run_command(arguments: Sequence[str]) -> int:
    as_json = "--json" in _own(arguments)
    try:
        _refuse_unknown_command(arguments)
        app = build_app(full_page_of=_page_wanted(arguments))
        result = app(with_recipe(arguments, app), exit_on_error=False, print_error=False, result_action="return_value")
        return int(result) if isinstance(result, int) else int(ExitCode.GOOD)
    except BrokenPipeError:
        raise
    except OutputLost as error:
        _forget_output()
        return _fail(error, as_json=False)
    except EyasError as error:
        return _fail(error, as_json)
    except cyclopts.CycloptsError as error:
        return _fail(UsageError.of(error, arguments), as_json)
    except MemoryError:
        return _fail(OutOfMemory.of(arguments), as_json)
    except KeyboardInterrupt:
        print("interrupted: nothing half-written; run the same command again to go on", file=sys.stderr)
        if as_json:
            print_json(Interrupted.of(arguments).as_document())
        return 128 + signal.SIGINT
    except OSError as error:
        return _fail(RefusedBySystem.of(error, arguments), as_json)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in _TORCH_EXTRA:
            return _bug(error, arguments, as_json)
        return _fail(ExtraMissing.of(error.name, arguments), as_json)
    except Exception as error:  # noqa: BLE001 - the border of the program: our fault, shown whole
        if type(error).__name__ == "OutOfMemoryError":  # torch's, of a GPU; torch is not imported here
            return _fail(OutOfMemory.of(arguments, str(error).partition("\n")[0]), as_json)
        return _bug(error, arguments, as_json)


def _bug(error: Exception, arguments: Sequence[str], as_json: bool) -> int:
    print(printable("".join(traceback.format_exception(error))), file=sys.stderr, end="")
    print("error[internal]: this is a bug in eyas; please report it with the lines above", file=sys.stderr)
    if as_json:
        print_json(InternalError.of(error, arguments).as_document())
    return int(ExitCode.INTERNAL)


class UsageError(EyasError):
    """The command line itself is wrong."""

    code = "usage"

    @classmethod
    def of(cls, error: cyclopts.CycloptsError, arguments: Sequence[str]) -> "UsageError":
        """The house's form of cyclopts' own message (which names the nearest known flag)."""
        command = arguments[0] if arguments and not arguments[0].startswith("-") else ""
        what = str(error).strip().replace("\n", " ")
        ours = meant(error) if isinstance(error, cyclopts.UnknownOptionError) else None
        if ours is not None:
            what = f"{what.split(' Did you mean ')[0]} Did you mean {ours}?"
        return cls(
            what,
            " ".join(["eyas", *arguments]),
            "the command line is not one that eyas knows",
            f"see `eyas {command} --help`".replace("  ", " "),
        )


class ExtraMissing(EyasError):
    """The command needs a package that a light installation does not have."""

    code = "extra-missing"
    exit_code = ExitCode.ENVIRONMENT

    @classmethod
    def of(cls, package: str, arguments: Sequence[str]) -> "ExtraMissing":
        """For the package that could not be imported."""
        return cls(
            f"the Python package {package} is not installed",
            " ".join(["eyas", *arguments]),
            "this command, or the built-in target smollm2-135m, needs what `pip install eyas` leaves out",
            "pip install 'eyas[torch]' (from a clone: pip install '.[torch]')",
        )


class OutOfMemory(EyasError):
    """The machine, or its GPU, has less memory than the command needs."""

    code = "out-of-memory"
    exit_code = ExitCode.ENVIRONMENT

    @classmethod
    def of(cls, arguments: Sequence[str], why: str = "an allocation failed") -> "OutOfMemory":
        """For the command line `arguments`."""
        return cls(
            "the memory is not enough",
            " ".join(["eyas", *arguments]),
            f"{why.rstrip('.')}; files that are written whole or not at all are as they were",
            "close other programs, or give the command less at once (fewer rows, smaller batches)",
        )


class RefusedBySystem(EyasError):
    """The operating system refused something that no command foresaw: a full disk, a folder that is gone."""

    code = "os-error"
    exit_code = ExitCode.ENVIRONMENT

    @classmethod
    def of(cls, error: OSError, arguments: Sequence[str]) -> "RefusedBySystem":
        """For an `OSError` that nobody caught."""
        at = traceback.extract_tb(error.__traceback__)[-1]
        return cls(
            f"the operating system refused: {error.strerror or type(error).__name__}",
            str(error.filename or " ".join(["eyas", *arguments])),
            f"{type(error).__name__} in {at.name} ({os.path.basename(at.filename)}:{at.lineno})",
            "check the paths, the disk and the permissions, then run the same command again",
        )


class Interrupted(EyasError):
    """Ctrl-C; a document only, for the person at the keyboard knows."""

    code = "interrupted"

    @classmethod
    def of(cls, arguments: Sequence[str]) -> "Interrupted":
        """For the command line `arguments`."""
        where = " ".join(["eyas", *arguments])
        return cls("interrupted", where, "SIGINT, as Ctrl-C sends it", "run the same command again to go on")


class InternalError(EyasError):
    """A bug of ours, as the document that `--json` promises."""

    code = "internal"
    exit_code = ExitCode.INTERNAL

    @classmethod
    def of(cls, error: Exception, arguments: Sequence[str]) -> "InternalError":
        """For the exception that nobody caught."""
        return cls(
            "this is a bug in eyas",
            " ".join(["eyas", *arguments]),
            f"{type(error).__name__}: {str(error)[:500]}",
            "please report it with the lines on stderr",
        )


def _page_wanted(arguments: Sequence[str]) -> str | None:
    own = _own(arguments)
    return own[0] if own and own[0] in COMMANDS and {"--help", "-h"} & set(own) else None


def _forget_output() -> None:
    # What is still buffered cannot be written either; Python would try again at its end and complain.
    for stream in (sys.stdout, sys.stderr):
        if stream is None:  # closed from the beginning
            continue
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _own(arguments: Sequence[str]) -> Sequence[str]:
    """The arguments before a bare `--`: what follows belongs to an engine."""
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
    if sys.stderr is None:  # closed by the shell (`2>&-`): `print` would tell stdout in its place
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as we live
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal of another encoding than UTF-8 must not stop us
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main(sys.argv[1:]))
