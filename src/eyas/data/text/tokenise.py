"""Segments of text to token ids with a loss mask, proven by decoding them again. Many texts in one tokenizer call."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from eyas.data.text.chat_template import Segment, Tokenizer
from eyas.errors import EyasError


def encode_many(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text; nothing is added, cut or padded."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if not texts:
        return []
    if backend is None:
        ids: list[list[int]] = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return ids
    backend.no_truncation()  # a tokenizer.json may come with either
    backend.no_padding()
    return [encoded.ids for encoded in backend.encode_batch_fast(list(texts), add_special_tokens=False)]


def normalised(tokenizer: Tokenizer, text: str) -> str:
    """What the tokenizer makes of a text before it looks for tokens: Qwen's composes accents (NFC)."""
    normalizer: Any = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    return text if normalizer is None else str(normalizer.normalize_str(text))


def decode_many(tokenizer: Tokenizer, rows: Sequence[Sequence[int]]) -> list[str]:
    """The text of each row of ids, special tokens in it."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if (decode_rows := getattr(tokenizer, "decode_rows", None)) is not None:
        of_server: list[str] = decode_rows(rows)
        return of_server
    if backend is None:
        return [tokenizer.decode(r, skip_special_tokens=False, clean_up_tokenization_spaces=False) for r in rows]
    texts: list[str] = backend.decode_batch([list(row) for row in rows], skip_special_tokens=False)
    return texts


class TokensNotText(EyasError):
    """Token ids of the segments do not decode to the rendered text."""

    code = "tokens-not-text"


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One row.

    Attributes:
        token_ids: T ids in the target's vocabulary.
        is_supervised: T flags, true where the target wrote the token.
        number: of the row in its folder; -1 outside of one.
    """

    token_ids: tuple[int, ...]
    is_supervised: tuple[bool, ...]
    number: int = field(default=-1, compare=False)

    @property
    def num_supervised(self) -> int:
        """Tokens that carry loss."""
        return sum(self.is_supervised)

    def cut(self, max_length: int) -> "TokenRow":
        """The first `max_length` tokens."""
        return TokenRow(self.token_ids[:max_length], self.is_supervised[:max_length], self.number)


def tokenise(segments: Sequence[Segment], tokenizer: Tokenizer, where: str) -> TokenRow:
    """One row; see `tokenise_many`."""
    return tokenise_many([segments], tokenizer, [where])[0]


def tokenise_many(rows: Sequence[Sequence[Segment]], tokenizer: Tokenizer, wheres: Sequence[str]) -> list[TokenRow]:
    """Each segment tokenised on its own, so that the mask is exact and a prompt's ids are those a server would see.

    Args:
        rows: rendered conversations.
        tokenizer: the target's.
        wheres: the records, for the message.

    Raises:
        TokensNotText: decoding gives another text, and not for the tokenizer's own normal form: it adds or eats
            characters at the seams; or the text holds half of a surrogate pair.
    """
    texts = ["".join(segment.text for segment in segments) for segments in rows]
    for text, where in zip(texts, wheres, strict=True):
        _require_text(text, where)
    encoded = iter(encode_many(tokenizer, [segment.text for segments in rows for segment in segments]))
    parts = [[next(encoded) for _ in segments] for segments in rows]
    ids = [tuple(token for part in of_row for token in part) for of_row in parts]
    for text, segments, decoded, where in zip(texts, rows, decode_many(tokenizer, ids), wheres, strict=True):
        if decoded != text:
            _require_same("".join(normalised(tokenizer, segment.text) for segment in segments), text, decoded, where)
    return [
        TokenRow(row, tuple(s.is_supervised for s, part in zip(segments, of_row, strict=True) for _ in part))
        for row, segments, of_row in zip(ids, rows, parts, strict=True)
    ]


def _require_same(normal: str, text: str, decoded: str, where: str) -> None:
    """`normal` is the text as the tokenizer takes it, here and on every server."""
    if decoded == normal:
        return
    common = min(len(decoded), len(text))
    same = next((i for i, (a, b) in enumerate(zip(decoded, text, strict=False)) if a != b), common)
    raise TokensNotText(
        "token ids do not decode to the text they were made from",
        where,
        f"{text[max(0, same - 20) : same + 20]!r} came back as {decoded[max(0, same - 20) : same + 20]!r}",
        "remove the record if its text is broken; if every record fails, this tokenizer cannot be used",
    )


def _require_text(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokensNotText(
            "half of a surrogate pair is not text, and no token stands for it",
            where,
            str(error),
            "remove the record, or write the character whole",
        ) from error
