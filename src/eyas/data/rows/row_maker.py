"""Conversations to token rows, many at a time: what cannot be used, and what of a record its rows lack, is counted.

A row that looks whole may teach less than its record says. So each part of a record is looked for in the rendered text.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from eyas.data.prepare_config import PrepareConfig
from eyas.data.rows.exclusion import Exclusion
from eyas.data.text.chat_template import Segment, TemplateRewritesAnswer, TemplateUnstable
from eyas.data.text.target_text import TargetText
from eyas.data.text.tokenise import TokenRow, TokensNotText, decode_many, tokenise_many
from eyas.errors import EyasError
from eyas.models.chat_prompt import TemplateFailed
from eyas.records.conversation import SWITCHES, Conversation, WrittenRow, is_learned, text_print, why_unusable

_CHUNK = 512
_CHUNK_CHARACTERS = 1 << 23  # of a chunk's texts, which are tokenised in one call
# No token stands for more characters: a longer text is longer than any row without being tokenised.
_MOST_CHARACTERS_A_TOKEN = 1024
_MOST_CHARACTERS = 1 << 24  # beyond any context; more at a time ends the tokenizer, and the process with it
_REFUSALS = (TemplateFailed, TemplateUnstable, TemplateRewritesAnswer, TokensNotText)


class RowMaker:
    """Makes rows and counts what it leaves out.

    Args:
        text: of the target.
        config: length and turns.
        excluded: prompts that must not be learned.

    Attributes:
        dropped: reason -> count of records or rows left out.
        lost: kind -> count of parts that do not reach the rows of their record.
        first: reason or kind -> the first record that it was.
        refused: the first record that the template or the tokenizer cannot render, as their error.
        num_records: by index of the data file.
        num_as_written: conversations whose rows are the ids that the target wrote.
        edited: source and line of those whose text is not that of their recorded ids: the text was taken.
    """

    def __init__(self, text: TargetText, config: PrepareConfig, excluded: Exclusion) -> None:
        self._text, self._config, self._excluded = text, config, excluded
        self.dropped, self.lost, self.num_records = Counter[str](), Counter[str](), Counter[int]()
        self.first = dict[str, Conversation]()
        self.refused: EyasError | None = None
        self.num_as_written = 0
        self.edited = set[tuple[int, int]]()
        self._seen: set[int] = set()

    def rows(self, conversations: Iterable[Conversation]) -> Iterator[tuple[Conversation, list[TokenRow]]]:
        """Each record with the rows made of it, in order.

        Raises:
            TemplateEndless: the template does not come to an end.
        """
        for chunk in _chunks(conversations):
            usable = [conversation for conversation in chunk if self._is_usable(conversation)]
            made = self._made(usable)
            for conversation in chunk:
                rows, rendered = made.get(id(conversation), ([], None))
                kept = [kept for row in rows for kept in self._kept(row, conversation)]
                for kind in lost_parts(conversation, rendered) if kept else ():
                    self._count(self.lost, kind, conversation)
                yield conversation, kept

    def _is_usable(self, conversation: Conversation) -> bool:
        self.num_records[conversation.source] += 1
        most = min(_MOST_CHARACTERS_A_TOKEN * self._config.max_length, _MOST_CHARACTERS)
        if _num_characters(conversation) > most:
            reason: str | None = f"longer than {most} characters, and so than any row"
        elif self._excluded.holds(conversation):
            reason = self._excluded.reason
        else:
            reason = why_unusable(conversation)
        if reason is not None:
            self._count(self.dropped, reason, conversation)
        return reason is None

    def _count(self, counts: Counter[str], reason: str, conversation: Conversation) -> None:
        counts[reason] += 1
        self.first.setdefault(reason, conversation)

    def _made(self, conversations: Sequence[Conversation]) -> dict[int, tuple[list[TokenRow], str | None]]:
        """Rows by identity of the conversation, with the text that they were made of."""
        of_reader = [c for c in conversations if c.written and c.written_by == self._text.reader]
        as_written = self._as_written([c for c in of_reader if all(map(is_learned, c.messages))])
        return as_written | self._rendered([c for c in conversations if id(c) not in as_written])

    def _rendered(self, conversations: Sequence[Conversation]) -> dict[int, tuple[list[TokenRow], str | None]]:
        """Rows of rendered text. Where a record is refused, halves are tried until it is alone: the others are kept."""
        template, before = self._text.template, self._text.template.inserted.copy()
        try:
            if self._config.turns == "split":
                parts = [template.segments_by_turn(c) for c in conversations]
            else:
                parts = [[segments] for segments in template.segments_many(conversations)]
            wheres = [_where(c) for c, of_one in zip(conversations, parts, strict=True) for _ in of_one]
            rows = iter(tokenise_many([s for of_one in parts for s in of_one], self._text.tokenizer, wheres))
        except _REFUSALS as error:
            template.inserted = before
            if len(conversations) > 1:
                half = len(conversations) // 2
                return self._rendered(conversations[:half]) | self._rendered(conversations[half:])
            self.refused = self.refused or error
            self._count(self.dropped, _reason(error), conversations[0])
            return {}
        return {
            id(c): ([next(rows) for _ in of_one], _text(of_one)) for c, of_one in zip(conversations, parts, strict=True)
        }

    def _as_written(self, conversations: Sequence[Conversation]) -> dict[int, tuple[list[TokenRow], str | None]]:
        """Rows of recorded ids, where these still are the text of the record."""
        edited = {id(c) for c in conversations if c.written_text not in (None, text_print(c.messages))}
        edited |= self._edited([c for c in conversations if c.written_text is None])
        self.num_as_written += len(conversations) - len(edited)
        self.edited |= {(c.source, c.line) for c in conversations if id(c) in edited}
        return {
            id(c): ([made for row in c.written for made in _split(row, self._config.turns == "split")], None)
            for c in conversations
            if id(c) not in edited
        }

    def _edited(self, conversations: Sequence[Conversation]) -> set[int]:
        """Identities of those whose ids do not decode to their questions and answers: all that records without a
        checksum of their text can show."""
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
            self._count(self.dropped, f"longer than {most} tokens", conversation)
            return
        if is_long:
            row = row.cut(most)
        if row.num_supervised == 0:
            self._count(self.dropped, "nothing supervised", conversation)
        elif (print_ := hash(row)) in self._seen:
            self._count(self.dropped, "the same as an earlier row", conversation)
        else:
            if is_long:
                self._count(self.dropped, f"cut at {most} tokens (kept)", conversation)
            self._seen.add(print_)
            yield row


def _chunks(conversations: Iterable[Conversation]) -> Iterator[list[Conversation]]:
    """Neighbours, bounded in number and in characters."""
    chunk, num_characters = list[Conversation](), 0
    for conversation in conversations:
        num = _num_characters(conversation)
        if chunk and (len(chunk) >= _CHUNK or num_characters + num > _CHUNK_CHARACTERS):
            yield chunk
            chunk, num_characters = [], 0
        chunk.append(conversation)
        num_characters += num
    if chunk:
        yield chunk


def _num_characters(conversation: Conversation) -> int:
    texts = (v for m in conversation.messages for v in m.values())
    return sum(len(value) if isinstance(value, str) else len(str(value)) for value in texts)


def _reason(error: EyasError) -> str:
    """Why a record is left out, the same for all records with the same fault."""
    detail = f" ({error.why[:100]})" if isinstance(error, TemplateFailed) else ""
    return f"{error.what}{detail}"


def _text(parts: Sequence[Sequence[Segment]]) -> str:
    return "\0".join(segment.text for segments in parts for segment in segments)


def _said(message: Mapping[str, Any]) -> str:
    """What the rendered text must contain; templates trim white space around a user's words."""
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


_LEFT_OUT = "left out by the chat template"
# Keys of a turn that are its text, are compared elsewhere, or say nothing to a model.
_KNOWN = {"role", "content", "tool_calls", "tool_call_id", "id", "name", "reasoning_content", "thinking", "reasoning"}
_WORD = re.compile(r"\w{4,}")


def lost_parts(conversation: Conversation, rendered: str | None) -> Iterator[str]:
    """The kind of each part of the record that its rows do not hold as given.

    Args:
        rendered: everything that its rows hold; None where they hold the very ids that the target wrote.
    """
    yield from conversation.lost
    messages = conversation.messages
    last = max(number for number, message in enumerate(messages) if message["role"] == "assistant")
    yield from ("a turn after the last answer" for _ in messages[last + 1 :])
    for message in messages[: last + 1]:
        if message["role"] == "assistant" and not is_learned(message):
            yield f"an answer with {' or '.join(SWITCHES)} of 0 or false: read, not learned"
        if rendered is not None:
            yield from _unrendered(message, rendered)
            thoughts = str(message.get("reasoning_content") or "").strip()
            # An answer may say the same as the thoughts before it.
            if rendered.count(thoughts) <= sum(str(m.get("content")).count(thoughts) for m in messages) and thoughts:
                yield f"reasoning of an answer, {_LEFT_OUT}"
    if conversation.tools and rendered is not None and not any(_holds(rendered, n) for n in _names(conversation.tools)):
        yield f"tool descriptions, {_LEFT_OUT}"


def _unrendered(message: Mapping[str, Any], rendered: str) -> Iterator[str]:
    content = message.get("content")
    if content and message["role"] != "assistant" and not _holds(rendered, content):
        yield f"the text of a {message['role']} turn, {_LEFT_OUT}"
    for key in message.keys() - _KNOWN - set(SWITCHES):
        if message[key] and not _holds(rendered, message[key]):
            yield f"`{key[:40]}` of a turn, {_LEFT_OUT}"


def _holds(rendered: str, part: Any) -> bool:
    """The text has `part`, as it is or in another notation: as JSON, with other white space."""
    text = str(part).strip()
    return text in rendered or (bool(words := _WORD.findall(text)) and all(word in rendered for word in words))


def _names(tools: Sequence[Any]) -> Iterator[str]:
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        yield str(function.get("name", "")) if isinstance(function, Mapping) else str(tool)
