"""A conversation as data: turns, and where it was read. Knows the formats' common meaning, no tokenizer."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

NO_TEXT = "a turn whose content is no text"
ROLES = ("system", "developer", "user", "assistant", "tool")
_PROMPT_ONLY = "read as a prompt only (it has no `messages`): --regenerate lets the target answer it"


@dataclass(frozen=True, slots=True)
class WrittenRow:
    """What a target read and wrote, as token ids: exact where its text, tokenised again, may differ.

    Attributes:
        ids: T ids.
        answers: (begin, end) of each stretch that the target wrote, in order.
    """

    ids: Sequence[int]
    answers: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One record.

    Attributes:
        messages: turns as chat templates take them: `role`, `content`, and what else the template knows
            (`reasoning_content`, `tool_calls` ...).
        source: index of the data file.
        line: 1-based line or record number in it.
        is_finished: the last answer ended by itself; False when it was cut off, so that nobody learns to stop there.
        tools: tool descriptions for the template.
        written: the rows that the answers were written in; empty when only text is known.
        written_by: fingerprint of the tokenizer and template that `written` is of.
        written_text: `text_print` of the turns when they were written; None when unknown.
        temperature: of the answers, 0 = greedy; None when unknown.
        is_prompt: of a form (`turns`, `prompt`, `question`) that holds no answers: what may stand beside is not read.
    """

    messages: Sequence[Mapping[str, Any]]
    source: int
    line: int
    is_finished: bool = True
    tools: Sequence[Mapping[str, Any]] | None = None
    written: Sequence[WrittenRow] = ()
    written_by: str | None = None
    written_text: int | None = None
    temperature: float | None = None
    is_prompt: bool = False


def text_print(messages: Sequence[Mapping[str, Any]]) -> int:
    """A checksum of the turns' text: says without decoding any ids whether somebody has edited it."""
    text = "\0".join(str(message.get("content")) for message in messages)
    return zlib.crc32(text.encode(errors="surrogatepass"))


def why_unusable(conversation: Conversation) -> str | None:
    """The reason to drop a conversation before it is tokenised, None if there is none."""
    messages = conversation.messages
    if not messages:
        return "no messages"
    if any(message.get("role") not in ROLES for message in messages):
        return f"a role other than {', '.join(ROLES)}"
    if not any(message["role"] == "assistant" for message in messages):
        return _PROMPT_ONLY if conversation.is_prompt else "no assistant turn"
    if messages[0]["role"] == "assistant":
        return "starts with an assistant turn"
    for before, message in pairwise(messages):
        if before["role"] == message["role"] and message["role"] != "tool":
            return "two turns of one role in a row"
    if any(is_no_text(message) for message in messages):
        return NO_TEXT
    if any(_is_empty(message) for message in messages if message["role"] == "assistant"):
        return "an empty assistant turn"
    return None


def place_of(conversation: Conversation, file: object) -> str:
    """Where in `file` it stands, for a person; with the first role that nobody knows, if there is one."""
    roles = [message.get("role") for message in conversation.messages if message.get("role") not in ROLES]
    role = f", role {str(roles[0])[:40]!r}" if roles else ""
    return f"{file}:{conversation.line}{role}"


def is_no_text(message: Mapping[str, Any]) -> bool:
    """A template would fail, or put `None` or a list's source into the prompt. An assistant may call and say nothing;
    what a tool gives may be an object, which templates write as JSON."""
    content = message.get("content")
    if content is None:
        return message["role"] not in ("assistant", "tool")
    return not isinstance(content, str) and message["role"] != "tool"


def _is_empty(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    has_text = isinstance(content, str) and bool(content.strip())
    return not (has_text or message.get("tool_calls") or message.get("reasoning_content"))
