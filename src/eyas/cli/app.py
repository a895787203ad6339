"""The `eyas` command: registers the subcommands (each imported only when it runs) and maps errors to exit codes."""

import difflib
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence

import cyclopts

from eyas import __version__
from eyas.cli.recipe_file import with_recipe
from eyas.errors import ExitCode, EyasError

# subcommand -> (module:function, what the list of commands says of it)
COMMANDS = {
    "demo": ("eyas.cli.demo:demo", "The main job, end to end, on the built-in target."),
    "prepare": ("eyas.cli.prepare:prepare", "Conversations to tokenised rows with an exact loss mask."),
    "train": ("eyas.cli.train:train", "Train an EAGLE-3 draft for a target."),
    "eval": ("eyas.cli.eval:eval_", "Accept length of a draft by replay, without a server."),
    "infer": ("eyas.cli.infer:infer", "Which undocumented switches a draft was trained with."),
    "check": ("eyas.cli.check:check", "What an engine will do with a draft: every tensor, every key."),
    "convert": ("eyas.cli.convert:convert", "Translate a draft between formats, nothing dropped in silence."),
    "bench": ("eyas.cli.bench:bench", "Plain against speculative decoding, measured beside the ceiling."),
    "report": ("eyas.cli.report:report", "One self-contained HTML page of a run."),
    "header": ("eyas.cli.header:header", "A checkpoint's names, shapes and config, without weights."),
    "engines": ("eyas.cli.engines:engines", "The load rules known, by engine and version."),
    "serve": ("eyas.cli.serve:serve", "Start SGLang or vLLM with a draft, checked and supervised."),
    "watch": ("eyas.cli.watch:watch", "What a server is doing now: a URL, a process or a log."),
}


def build_app() -> cyclopts.App:
    """The command tree; nothing of a subcommand is imported yet."""
    app = cyclopts.App(
        name="eyas",
        version=__version__,
        help="EAGLE-3 speculative decoding: prepare, train, eval, check, convert, serve, bench.",
        help_epilogue="Exit codes: 0 good, 1 findings, 2 usage or config, 3 environment, 4 internal.",
    )
    for name, (target, help_line) in COMMANDS.items():
        app.command(target, name=name, help=help_line)
    return app


def main(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code. Prints errors in the house's form; never raises."""
    as_json = "--json" in _own(arguments)
    try:
        _refuse_unknown_command(arguments)
        app = build_app()
        result = app(with_recipe(arguments, app), exit_on_error=False, print_error=False, result_action="return_value")
        return int(result) if isinstance(result, int) else int(ExitCode.GOOD)
    except EyasError as error:
        return _fail(error, as_json)
    except cyclopts.CycloptsError as error:
        return _fail(UsageError.of(error, arguments), as_json)
    except KeyboardInterrupt:
        print("interrupted: nothing half-written; run the same command again to go on", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): quiet, as other tools are.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception:  # noqa: BLE001 - the border of the program: our fault, shown whole
        traceback.print_exc()
        print("error[internal]: this is a bug in eyas; please report it with the lines above", file=sys.stderr)
        return int(ExitCode.INTERNAL)


class UsageError(EyasError):
    """The command line itself is wrong."""

    code = "usage"

    @classmethod
    def of(cls, error: cyclopts.CycloptsError, arguments: Sequence[str]) -> "UsageError":
        """The house's form of cyclopts' own message (which names the nearest known flag)."""
        command = arguments[0] if arguments and not arguments[0].startswith("-") else ""
        what = str(error).strip().replace("\n", " ")
        return cls(
            what,
            " ".join(["eyas", *arguments]),
            "the command line is not one that eyas knows",
            f"see `eyas {command} --help`".replace("  ", " "),
        )


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
    print(str(error), file=sys.stderr)
    for note in getattr(error, "__notes__", []):
        print(f"  = note: {note}", file=sys.stderr)
    if as_json:
        print(json.dumps(error.as_document(), ensure_ascii=False))
    return int(error.exit_code)


def run() -> None:
    """Entry point of the `eyas` script."""
    sys.exit(main(sys.argv[1:]))
