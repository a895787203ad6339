"""The conversation at the keyboard: reads lines, answers them, and lives on when an answer is interrupted or fails."""

import contextlib
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from eyas.chat.chat_config import require_prompt_text
from eyas.cli.chat_screen import ChatScreen
from eyas.errors import EyasError
from eyas.talk import Talk

if TYPE_CHECKING:
    from eyas.chat.session import ChatSession

_COMMANDS = ("/reset", "/plain", "/help", "/exit")
_HELP = """/reset  forget what was said
/plain  speculation off, or on again
/exit   end, as Ctrl-D does
Ctrl-C ends an answer; a second one, before the answer has ended, everything."""


def read_line() -> str | None:
    """A line of the keyboard; None at the end of input (Ctrl-D)."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - arrow keys and the lines before, in `input`
    shown = "> "
    if not sys.stdout.isatty():  # then `input` would write it among the answers
        print(shown, end="", file=sys.stderr, flush=True)
        shown = ""
    try:
        return input(shown)
    except EOFError:
        return None


def talk_on(session: "ChatSession", screen: ChatScreen, talk: Talk, read: Callable[[], str | None] = read_line) -> None:
    """Answer line after line, to the end of input or /exit.

    Raises:
        KeyboardInterrupt: Ctrl-C twice during one answer.
    """
    while True:
        try:
            line = read()
            if line is None:
                talk.line("")
                return
            if not line.strip() or _misses_command(line, talk):
                continue
            command = line.strip().lower()
            if command == "/exit":
                return
            if command in _COMMANDS:
                _obey(command, session, talk)
            else:
                _answer(line, session, screen)
        except KeyboardInterrupt:
            if isinstance(sys.exc_info()[1], _Twice):
                raise
            talk.line("")  # at the keyboard: the line is given up
        except UnicodeDecodeError:
            talk.line("this line is no UTF-8: not said")
        except EyasError as error:
            screen.newline()
            talk.line("\n".join([str(error), *(f"  = note: {n}" for n in getattr(error, "__notes__", []))]))


def _answer(line: str, session: "ChatSession", screen: ChatScreen) -> None:
    require_prompt_text(line, "this line")
    with OneInterrupt() as interrupt:
        answer = session.answer(line, screen.show, interrupt.asked)
    screen.end(answer)


def _misses_command(line: str, talk: Talk) -> bool:
    """Whether the line was meant as a command and is none, which is said; `/etc/passwd` and `/tmp is full` are not."""
    first, *more = line.split()
    if not first.startswith("/") or "/" in first[1:]:
        return False
    is_known = first.lower() in _COMMANDS
    if is_known and not more:
        return False
    if more and not is_known:
        talk.line(f"no command {first}: taken as a prompt")
        return False
    no = "stands alone on its line: nothing done, nothing sent" if is_known else f"is no command; there are\n{_HELP}"
    talk.line(f"{first} {no}")
    return True


def _obey(command: str, session: "ChatSession", talk: Talk) -> None:
    if command == "/reset":
        session.reset()
        talk.line("forgotten")
    elif command == "/plain":
        session.is_plain = session.has_draft and not session.is_plain
        if session.has_draft:
            talk.line(f"speculation is {'off' if session.is_plain else 'on'}")
        else:
            talk.line("there is no draft: decoding is plain as it is")
    elif command == "/help":
        talk.line(_HELP)


class _Twice(KeyboardInterrupt):
    """The second Ctrl-C of one answer."""


class OneInterrupt:
    """Remembers a first Ctrl-C, so that a round in flight ends well; a second one is not waited with.

    Use as a context manager in the main thread; the handler that was there before comes back.
    """

    def __init__(self) -> None:
        self._was_asked = False
        self._before: Any = None

    def __enter__(self) -> "OneInterrupt":
        self._before = signal.signal(signal.SIGINT, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def asked(self) -> bool:
        """Ctrl-C came."""
        return self._was_asked

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        if self._was_asked:
            raise _Twice
        self._was_asked = True
