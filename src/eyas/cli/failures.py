"""How a failing command ends: every exception becomes one error in eyas' form, with its exit code."""

import os
import traceback
from collections.abc import Sequence

import cyclopts

from eyas.cli.synonyms import our_name
from eyas.errors import ExitCode, EyasError

# Packages of the extra `torch`: if one is missing, the user installs it; it is not a bug.
_TORCH_EXTRA = {"torch", "transformers", "gguf", "safetensors", "tokenizers", "numpy"}


class UsageError(EyasError):
    """The command line itself is wrong."""

    code = "usage"


class NestedTooDeep(EyasError):
    """Something that was read is nested deeper than Python can follow."""

    code = "nested-too-deep"


class NameNotUtf8(EyasError):
    """A library cannot take a path that is not valid UTF-8."""

    code = "name-not-utf-8"


class ExtraMissing(EyasError):
    """The command needs a package that a light installation does not have."""

    code = "extra-missing"
    exit_code = ExitCode.ENVIRONMENT


class OutOfMemory(EyasError):
    """The machine, or its GPU, has less memory than the command needs."""

    code = "out-of-memory"
    exit_code = ExitCode.ENVIRONMENT


class RefusedBySystem(EyasError):
    """The operating system refused something that no command expected: a full disk, a folder that was deleted."""

    code = "os-error"
    exit_code = ExitCode.ENVIRONMENT


class Interrupted(EyasError):
    """Ctrl-C, as the document that `--json` promises."""

    code = "interrupted"


class InternalError(EyasError):
    """A bug of eyas, as the document that `--json` promises."""

    code = "internal"
    exit_code = ExitCode.INTERNAL


def failure_of(error: BaseException, arguments: Sequence[str]) -> EyasError:
    """What to tell the user about an exception that ended the command line `arguments`.

    An `InternalError` means that eyas is wrong, and the traceback is worth showing.
    """
    where, first_line = " ".join(["eyas", *arguments]), str(error).partition("\n")[0]
    match error:
        case EyasError():
            return error
        case cyclopts.CycloptsError():
            return _usage(error, arguments, where)
        case KeyboardInterrupt():
            return Interrupted("interrupted", where, "SIGINT (Ctrl-C)", "run the same command again to resume")
        case RecursionError():
            return NestedTooDeep(
                "the input is nested too deeply",
                where,
                first_line,
                "flatten the file; if none of your files is nested, report this as a bug",
            )
        case ModuleNotFoundError() if (error.name or "").split(".")[0] in _TORCH_EXTRA:
            return ExtraMissing(
                f"the Python package {error.name} is not installed",
                where,
                "this command, or the built-in target smollm2-135m, needs what `pip install eyas` leaves out",
                "pip install 'eyas[torch]' (from a clone: pip install '.[torch]')",
            )
        case OSError():
            at = traceback.extract_tb(error.__traceback__)[-1]
            return RefusedBySystem(
                f"the operating system refused: {error.strerror or type(error).__name__}",
                str(error.filename or where),
                f"{type(error).__name__} in {at.name} ({os.path.basename(at.filename)}:{at.lineno})",
                "check the paths, the disk and the permissions, then run the same command again",
            )
    if isinstance(error, UnicodeEncodeError) or "is not valid UTF-8" in first_line:  # of transformers, safetensors
        do = "rename the file or folder, or give it through a link with a plain name"
        return NameNotUtf8("a name is not valid UTF-8", where, first_line, do)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's; torch is not imported
        return OutOfMemory(
            "there is not enough memory",
            where,
            f"{first_line.rstrip('.') or 'an allocation failed'}; no partial files were left behind",
            "close other programs, or give the command less at once (fewer rows, smaller batches)",
        )
    return InternalError(
        "this is a bug in eyas",
        where,
        f"{type(error).__name__}: {str(error)[:500]}",
        "please report it with the lines on stderr",
    )


def _usage(error: cyclopts.CycloptsError, arguments: Sequence[str], where: str) -> UsageError:
    """Cyclopts' own message, which names the nearest known option, unless another program's name was meant."""
    command = arguments[0] if arguments and not arguments[0].startswith("-") else ""
    what = str(error).strip().replace("\n", " ")
    ours = our_name(error) if isinstance(error, cyclopts.UnknownOptionError) else None
    if ours is not None:
        what = f"{what.split(' Did you mean ')[0]} Did you mean {ours}?"
    do = f"see `eyas {command} --help`".replace("  ", " ")
    return UsageError(what, where, "eyas cannot read this command line", do)
