"""The conversation at the keyboard, and its screen: it survives an answer that is interrupted or fails."""

import contextlib
import signal
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from eyas.chat.chat_config import require_prompt_text
from eyas.cli.output import print_part, use_colour
from eyas.errors import EyasError
from eyas.talk import Talk

if TYPE_CHECKING:
    from eyas.chat.session import ChatAnswer, ChatSession
    from eyas.chat.text_stream import Piece

_UNDERLINED = "4"
_COMMANDS = ("/reset", "/plain", "/help", "/exit")
_HELP = """/reset  forget the conversation
/plain  turn speculation off, or on again
/exit   end, as Ctrl-D does
Ctrl-C ends an answer; a second Ctrl-C before the answer has ended ends the session."""


class ChatScreen:
    """Shows answers on stdout and everything else on stderr.

    Args:
        talk: for the figures.
        shows_drafts: underline the tokens that a draft guessed, on a terminal with colours.
        to_stderr: answers go to stderr too, because stdout is for a document.
    """

    def __init__(self, talk: Talk, *, shows_drafts: bool, to_stderr: bool = False) -> None:
        self._talk, self._to_stderr = talk, to_stderr
        self._style = _UNDERLINED if shows_drafts and not to_stderr and use_colour() else ""
        self._has_newline = True

    def welcome(self, target: str, about: Mapping[str, Any]) -> None:
        """Say which target answers, and how."""
        depth = about["num_draft_tokens"]
        parts = [f"{target} on {about['device']} in {about['dtype']}"]
        parts += [f"K = {depth}"] if depth else ["plain decoding"]
        parts += ["underlined: guessed by the draft"] if depth and self._style else []
        self._talk.line(f"{', '.join(parts)}. /help; Ctrl-C ends an answer, Ctrl-D the session.")

    def show(self, piece: "Piece") -> None:
        """A piece of an answer."""
        print_part(piece.text, to_stderr=self._to_stderr, style=self._style if piece.is_draft else "")
        self._has_newline = piece.text.endswith("\n")

    def newline(self) -> None:
        """End the line if one was begun."""
        if not self._has_newline:
            print_part("\n", to_stderr=self._to_stderr)
        self._has_newline = True

    def end(self, answer: "ChatAnswer") -> None:
        """The end of an answer, and its figures."""
        self.newline()
        self._talk.line(figures_line(answer))


def figures_line(answer: "ChatAnswer") -> str:
    """Tokens, speed, time to the first token, accept length, rounds, and why the answer was cut, if it was."""
    text = answer.generation
    num, speed, rounds = len(text.ids), answer.tokens_per_s, len(text.accepted)
    parts = [f"{num} token{'s' * (num != 1)}"]
    parts += [f"{speed:.1f} tok/s"] if speed is not None else []
    parts += [f"first token after {text.prefill_s:.2f} s"]
    if answer.accept_length is not None:
        parts.append(f"accept length {answer.accept_length:.2f} in {rounds} round{'s' * (rounds != 1)}")
    else:
        parts.append("plain decoding" if text.num_draft_tokens == 0 else f"{rounds} rounds, none drafted")
    parts += {"length": [f"cut off after {num}"], "interrupted": ["interrupted"]}.get(answer.finish, [])
    return f"[{', '.join(parts)}]"


def read_line() -> str | None:
    """A line of the keyboard; None at the end of input (Ctrl-D)."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives `input` arrow keys and a history
    shown = "> "
    if not sys.stdout.isatty():  # `input` would write it among the answers
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
            if isinstance(sys.exc_info()[1], _SecondInterrupt):
                raise
            talk.line("")  # Ctrl-C at the keyboard drops the line
        except UnicodeDecodeError:
            talk.line("ignored: not valid UTF-8")
        except EyasError as error:
            screen.newline()
            talk.line("\n".join([str(error), *(f"  = note: {n}" for n in getattr(error, "__notes__", []))]))


def _answer(line: str, session: "ChatSession", screen: ChatScreen) -> None:
    require_prompt_text(line, "this line")
    with OneInterrupt() as interrupt:
        answer = session.answer(line, screen.show, interrupt.asked)
    screen.end(answer)


def _misses_command(line: str, talk: Talk) -> bool:
    """Whether the line is a mistyped command (which is then reported); `/etc/passwd` and `/tmp is full` are not."""
    first, *more = line.split()
    if not first.startswith("/") or "/" in first[1:]:
        return False
    is_known = first.lower() in _COMMANDS
    if is_known and not more:
        return False
    if more and not is_known:
        talk.line(f"{first} is not a command: taken as a prompt")
        return False
    talk.line(
        f"{first} must stand alone on its line; ignored" if is_known else f"{first} is not a command; try\n{_HELP}"
    )
    return True


def _obey(command: str, session: "ChatSession", talk: Talk) -> None:
    if command == "/reset":
        session.reset()
        talk.line("the conversation is forgotten")
    elif command == "/plain":
        session.is_plain = session.has_draft and not session.is_plain
        if session.has_draft:
            talk.line(f"speculation is {'off' if session.is_plain else 'on'}")
        else:
            talk.line("there is no draft: decoding is plain already")
    elif command == "/help":
        talk.line(_HELP)


class _SecondInterrupt(KeyboardInterrupt):
    """The second Ctrl-C of one answer."""


class OneInterrupt:
    """Remembers a first Ctrl-C, so that the round in flight can end; a second one raises at once.

    Use as a context manager in the main thread; it restores the previous handler.
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
        """Whether Ctrl-C was pressed."""
        return self._was_asked

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        if self._was_asked:
            raise _SecondInterrupt
        self._was_asked = True
