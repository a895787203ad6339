"""Token ids as text while they arrive: never half a character, and nothing of a stop string."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

_UNFINISHED = "\ufffd"  # what a decoder makes of bytes that are not a character, or not yet


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of an answer's text.

    Attributes:
        text: of one token, or of several that make one character; it then counts as the last one's.
        is_draft: whether a draft guessed it.
    """

    text: str
    is_draft: bool


class TokenText:
    """What each token adds to a text.

    Args:
        decode: ids to text. Decoders may drop a leading blank, so each token is decoded together with those before
            it.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        # Ids before `_begin` are no longer decoded; those before `_shown` have been shown.
        self._begin = self._shown = 0

    def push(self, token_id: int) -> str:
        """The text that this token completes; "" while a character is unfinished."""
        self._ids.append(token_id)
        text = self._unshown()
        if not text or text.endswith(_UNFINISHED):
            return ""
        self._begin, self._shown = self._shown, len(self._ids)
        return text

    def end(self) -> str:
        """The rest when no more tokens come: a character that stays unfinished."""
        text = self._unshown()
        self._begin = self._shown = len(self._ids)
        return text

    def _unshown(self) -> str:
        before = self._decode(self._ids[self._begin : self._shown])
        return self._decode(self._ids[self._begin :])[len(before) :]


class StopGate:
    """Lets pieces through up to the first stop string, which is left out.

    Args:
        stops: texts, none empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held: list[Piece] = []
        self.has_stopped = False

    def push(self, piece: Piece) -> list[Piece]:
        """The pieces that can be shown: all but what may still become a stop string."""
        assert not self.has_stopped, "nothing comes after a stop"
        self._held.append(piece)
        text = "".join(held.text for held in self._held)
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        self.has_stopped = bool(found)
        return self._release(min(found) if found else len(text) - self._num_kept(text))

    def end(self) -> list[Piece]:
        """The text still held back; called after the last piece."""
        held, self._held = self._held, []
        return [] if self.has_stopped else held

    def _num_kept(self, text: str) -> int:
        """Length of the longest suffix of `text` that is a prefix of a stop string."""
        longest = min(len(text), max((len(stop) - 1 for stop in self._stops), default=0))
        ends = range(longest, 0, -1)
        return next((num for num in ends if any(stop.startswith(text[-num:]) for stop in self._stops)), 0)

    def _release(self, num_letters: int) -> list[Piece]:
        released: list[Piece] = []
        while self._held and num_letters > 0:
            piece = self._held.pop(0)
            released.append(Piece(piece.text[:num_letters], piece.is_draft))
            if rest := piece.text[num_letters:]:
                self._held.insert(0, Piece(rest, piece.is_draft))
            num_letters -= len(piece.text)
        return released


class AnswerText:
    """From ids to pieces, and the number of ids that make up the text.

    Args:
        decode: ids to text.
        stops: see `StopGate`.
        show: takes each piece as it comes.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], stops: Sequence[str], show: Callable[[Piece], None]
    ) -> None:
        self._tokens, self._gate, self._show = TokenText(decode), StopGate(stops), show
        self._shown: list[str] = []
        self.num_ids = 0
        self._last_is_draft = False

    @property
    def text(self) -> str:
        """The text shown so far."""
        return "".join(self._shown)

    @property
    def has_stopped(self) -> bool:
        """Whether a stop string has come; its last token is counted in `num_ids`."""
        return self._gate.has_stopped

    def push(self, token_id: int, *, is_draft: bool) -> None:
        """Take one more token; after a stop string it is ignored."""
        if self.has_stopped:
            return
        self.num_ids += 1
        self._last_is_draft = is_draft
        self._through(self._tokens.push(token_id))

    def end(self) -> None:
        """Show what was held back."""
        if not self.has_stopped:
            self._through(self._tokens.end())
        self._tell(self._gate.end())

    def _through(self, text: str) -> None:
        if text:
            self._tell(self._gate.push(Piece(text, self._last_is_draft)))

    def _tell(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self._shown.append(piece.text)
            self._show(piece)
