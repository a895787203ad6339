"""How a stage speaks to a person without knowing of terminals: notes and progress. `cli` gives the real one.

`printable` is the one door for foreign text: whatever eyas did not write itself passes it before a terminal sees it.
"""

import importlib
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

_AGAIN_S = 0.3

# All but tab and newline that a terminal obeys instead of showing: control characters, lone surrogates, line and
# paragraph separators (they also end a line for Python's splitlines), and marks that turn the direction of text.
_UNSHOWN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)


def printable(text: str) -> str:
    r"""`text` with every character that a terminal would obey written as \uXXXX.

    Names in a foreign checkpoint, lines of a server's log and answers of a server stay text. Tab and newline stay;
    inside a JSON text the result means the same.
    """
    return _UNSHOWN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class Progress(Protocol):
    """A running task of known or unknown length."""

    def advance(self, amount: float = 1.0) -> None:
        """Move the bar on by `amount` of the task's unit."""

    def say(self, status: str) -> None:
        """Show a short live status beside the bar (a loss, tokens/s)."""


class Talk(Protocol):
    """What a stage may say while it works. Results are returned, never said."""

    def note(self, text: str) -> None:
        """Print once what was skipped, defaulted, clamped or guessed, with the value used."""

    def line(self, text: str) -> None:
        """Print an ordinary line about what is going on."""

    def progress(self, label: str, total: float | None, unit: str) -> AbstractContextManager[Progress]:
        """Open a progress bar with ETA; `total` None when unknown."""


def say_loading(talk: Talk) -> None:
    """Say why nothing moves for the next ten or twenty seconds, and import what takes them; to be called first.

    Raises:
        KeyboardInterrupt: Ctrl-C meanwhile, whatever the imported code makes of it.
    """
    if "torch" not in sys.modules:
        talk.line("loading torch and transformers")
        _import_interruptibly(("torch", "transformers"))


def _import_interruptibly(names: Sequence[str]) -> None:
    """Import what is installed. Code that runs at import may swallow a KeyboardInterrupt, or turn it into an error of
    its own: it is raised again and again until it gets through."""
    asked: list[int] = []

    def interrupt(_number: int, _frame: object) -> None:
        asked.append(1)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        raise KeyboardInterrupt

    is_ours = threading.current_thread() is threading.main_thread()
    is_ours = is_ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    before = [(n, signal.signal(n, interrupt)) for n in (signal.SIGINT, signal.SIGALRM) if is_ours]
    try:
        for name in names:
            importlib.import_module(name)
    except Exception:  # noqa: BLE001 - what is missing or broken, the command's own import tells
        pass
    finally:
        if is_ours:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before:
            signal.signal(number, handler)
    if asked:
        raise KeyboardInterrupt


def counted(num: int, one: str, many: str = "") -> str:
    """ "1 tensor", "3 tensors"; `many` where the plural is not `one` with an s."""
    return f"{num} {one if num == 1 else many or one + 's'}"


def seconds(value: float | None) -> str:
    """ "4 s", "2:07 min", "1:02 h", "9 days"; "?" for None."""
    if value is None:
        return "?"
    if value < 100:
        return f"{value:.0f} s"
    minutes, rest = divmod(int(value), 60)
    if minutes < 100:
        return f"{minutes}:{rest:02d} min"
    hours = minutes // 60
    return f"{hours}:{minutes % 60:02d} h" if hours < 72 else f"{hours // 24} days"


def gigabytes(value: float | None) -> str:
    """ "12.3 GB"; "?" for None."""
    return "?" if value is None else f"{value / 1e9:.1f} GB"


class _SilentProgress:
    def advance(self, amount: float = 1.0) -> None:
        return None

    def say(self, status: str) -> None:
        return None


class Silent:
    """A `Talk` that keeps quiet but remembers: `notes` and `lines` hold what was said."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def line(self, text: str) -> None:
        self.lines.append(text)

    @contextmanager
    def progress(self, label: str, total: float | None, unit: str) -> Iterator[Progress]:
        yield _SilentProgress()
