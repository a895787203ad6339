"""What `eyas chat` shows: the answer as it comes, drafts underlined, and one line of figures behind it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from eyas.cli.output import print_part, use_colour
from eyas.talk import Talk

if TYPE_CHECKING:
    from eyas.chat.session import ChatAnswer
    from eyas.chat.text_stream import Piece

_UNDERLINED = "4"


class ChatScreen:
    """Answers to stdout, all else to stderr.

    Args:
        talk: for the figures.
        shows_drafts: tokens that a draft guessed are underlined, in a terminal with colours.
        to_stderr: answers go to stderr too: stdout is for a document.
    """

    def __init__(self, talk: Talk, *, shows_drafts: bool, to_stderr: bool = False) -> None:
        self._talk, self._to_stderr = talk, to_stderr
        self._style = _UNDERLINED if shows_drafts and not to_stderr and use_colour() else ""
        self._has_newline = True

    def welcome(self, target: str, about: Mapping[str, Any]) -> None:
        """What one is talking to."""
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
        """End the line, where one is begun."""
        if not self._has_newline:
            print_part("\n", to_stderr=self._to_stderr)
        self._has_newline = True

    def end(self, answer: "ChatAnswer") -> None:
        """The end of an answer, and its figures."""
        self.newline()
        self._talk.line(figures_line(answer))


def figures_line(answer: "ChatAnswer") -> str:
    """Tokens, speed, time to the first token, accept length and rounds, and an end that was not the target's."""
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
