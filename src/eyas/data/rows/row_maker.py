"""Conversations to token rows, many at a time: what cannot be used is left out and counted."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from eyas.data.prepare_config import PrepareConfig
from eyas.data.rows.exclusion import Exclusion
from eyas.data.text.target_text import TargetText
from eyas.data.text.tokenise import TokenRow, decode_many, tokenise_many
from eyas.records.conversation import Conversation, WrittenRow, text_print, why_unusable

_CHUNK = 512


class RowMaker:
    """Makes rows and counts what it leaves out.

    Args:
        text: of the target.
        config: length and turns.
        excluded: prompts that must not be learned.

    Attributes:
        dropped: reason -> count.
        first: reason -> the first record that it was.
        num_records: by index of the data file.
        num_as_written: conversations whose rows are the ids that the target wrote.
        edited: source and line of those whose text is not that of their recorded ids: the text was taken.
    """

    def __init__(self, text: TargetText, config: PrepareConfig, excluded: Exclusion) -> None:
        self._text, self._config, self._excluded = text, config, excluded
        self.dropped, self.num_records = Counter[str](), Counter[int]()
        self.first = dict[str, Conversation]()
        self.num_as_written = 0
        self.edited = set[tuple[int, int]]()
        self._seen: set[int] = set()

    def rows(self, conversations: Iterable[Conversation]) -> Iterator[tuple[Conversation, list[TokenRow]]]:
        """Each record with the rows made of it, in order.

        Raises:
            TemplateUnstable, TemplateRewritesAnswer, TemplateFailed, TokensNotText: no exact mask for a record.
        """
        stream = iter(conversations)
        while chunk := list(islice(stream, _CHUNK)):
            usable = [conversation for conversation in chunk if self._is_usable(conversation)]
            made = self._made(usable)
            for conversation in chunk:
                rows = made.get(id(conversation), [])
                yield conversation, [kept for row in rows for kept in self._kept(row, conversation)]

    def _is_usable(self, conversation: Conversation) -> bool:
        self.num_records[conversation.source] += 1
        if self._excluded.holds(conversation):
            reason: str | None = self._excluded.reason
        else:
            reason = why_unusable(conversation)
        if reason is not None:
            self._count(reason, conversation)
        return reason is None

    def _count(self, reason: str, conversation: Conversation) -> None:
        self.dropped[reason] += 1
        self.first.setdefault(reason, conversation)

    def _made(self, conversations: Sequence[Conversation]) -> dict[int, list[TokenRow]]:
        """Rows by identity of the conversation."""
        as_written = self._as_written([c for c in conversations if c.written and c.written_by == self._text.reader])
        others = [c for c in conversations if id(c) not in as_written]
        template = self._text.template
        if self._config.turns == "split":
            parts = [template.segments_by_turn(c) for c in others]
        else:
            parts = [[segments] for segments in template.segments_many(others)]
        wheres = [_where(c) for c, of_one in zip(others, parts, strict=True) for _ in of_one]
        rows = iter(tokenise_many([s for of_one in parts for s in of_one], self._text.tokenizer, wheres))
        return as_written | {id(c): [next(rows) for _ in of_one] for c, of_one in zip(others, parts, strict=True)}

    def _as_written(self, conversations: Sequence[Conversation]) -> dict[int, list[TokenRow]]:
        """Rows of recorded ids, where these still are the text of the record."""
        edited = {id(c) for c in conversations if c.written_text not in (None, text_print(c.messages))}
        edited |= self._edited([c for c in conversations if c.written_text is None])
        self.num_as_written += len(conversations) - len(edited)
        self.edited |= {(c.source, c.line) for c in conversations if id(c) in edited}
        return {
            id(c): [made for row in c.written for made in _split(row, self._config.turns == "split")]
            for c in conversations
            if id(c) not in edited
        }

    def _edited(self, conversations: Sequence[Conversation]) -> set[int]:
        """Identities of those whose ids do not decode to their questions and answers: what can be told of records that
        hold no checksum of their text."""
        texts = iter(decode_many(self._text.tokenizer, [row.ids for c in conversations for row in c.written]))
        edited = set()
        for c in conversations:
            text = "".join([next(texts) for _ in c.written])
            if not all(_said(m) in text for m in c.messages if m["role"] in ("user", "assistant")):
                edited.add(id(c))
        return edited

    def _kept(self, row: TokenRow, conversation: Conversation) -> Iterator[TokenRow]:
        most = self._config.max_length
        is_long = len(row.token_ids) > most
        if is_long and self._config.too_long == "drop":
            self._count(f"longer than {most} tokens", conversation)
            return
        if is_long:
            row = row.cut(most)
        if row.num_supervised == 0:
            self._count("nothing supervised", conversation)
        elif (print_ := hash(row)) in self._seen:
            self._count("the same as an earlier row", conversation)
        else:
            if is_long:
                self._count(f"cut at {most} tokens (kept)", conversation)
            self._seen.add(print_)
            yield row


def _said(message: Mapping[str, Any]) -> str:
    """What must stand in the text: of a user's words templates trim the ends."""
    content = message.get("content") or ""
    return content if message["role"] == "assistant" else str(content).strip()


def _split(row: WrittenRow, by_answer: bool) -> list[TokenRow]:
    """A recorded row, or one row per answer with all before it as its prompt."""
    ids = tuple(row.ids)
    if by_answer:
        return [TokenRow(ids[:end], (False,) * begin + (True,) * (end - begin)) for begin, end in row.answers]
    flags, at = list[bool](), 0
    for begin, end in row.answers:
        flags += [False] * (begin - at) + [True] * (end - begin)
        at = end
    return [TokenRow(ids[:at], tuple(flags))]


def _where(conversation: Conversation) -> str:
    return f"data file {conversation.source + 1}, record {conversation.line}"
