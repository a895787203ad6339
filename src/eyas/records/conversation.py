"""A conversation as data: its turns, and where it was read. Knows what the formats have in common, no tokenizer."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

NO_TEXT = "a turn whose content is not text"
ROLES = ("system", "developer", "user", "assistant", "tool")
_PROMPT_ONLY = "read as a prompt only (it has no `messages`): --regenerate lets the target answer it"
# What data puts beside an answer to say whether it may be learned: OpenAI and Axolotl, Axolotl, others.
SWITCHES = ("weight", "train", "loss")


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
        is_finished: the last answer ended by itself; False when it was cut off, so that no draft learns to stop there.
        tools: tool descriptions for the template.
        written: the rows that the answers were written in; empty when only text is known.
        written_by: fingerprint of the tokenizer and template that `written` is of.
        written_text: `text_print` of the turns when they were written; None when unknown.
        temperature: of the answers, 0 = greedy; None when unknown.
        is_prompt: of a form (`turns`, `prompt`, `question`) that holds no answers: other fields are not read.
        lost: parts of the record that reading it changed or left out, one text a part.
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
    lost: Sequence[str] = ()


def is_learned(answer: Mapping[str, Any]) -> bool:
    """Whether a draft may learn this answer: no `weight: 0`, `train: false` or `loss: false` stands beside it."""
    return all(answer.get(name, True) not in (0, False) for name in SWITCHES)


def text_print(messages: Sequence[Mapping[str, Any]]) -> int:
    """A checksum of the turns' text: shows that a record was edited without decoding any ids."""
    text = "\0".join(str(message.get("content")) for message in messages)
    return zlib.crc32(text.encode(errors="surrogatepass"))


def why_no_prompt(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Why nothing can be asked with these turns; None if they are text of known roles."""
    if not messages:
        return "no messages"
    if any(message.get("role") not in ROLES for message in messages):
        return f"a role other than {', '.join(ROLES)}"
    return NO_TEXT if any(is_no_text(message) for message in messages) else None


def why_unusable(conversation: Conversation) -> str | None:
    """The reason to leave a conversation out before it is tokenised; None if there is none."""
    messages = conversation.messages
    reason = why_no_prompt(messages)
    if reason is not None and reason != NO_TEXT:
        return reason
    answers = [message for message in messages if message["role"] == "assistant"]
    if not answers:
        return _PROMPT_ONLY if conversation.is_prompt else "no assistant turn"
    if messages[0]["role"] == "assistant":
        return "starts with an assistant turn"
    if any(a["role"] == b["role"] != "tool" for a, b in pairwise(messages)):
        return "two turns of one role in a row"
    if reason is None and any(_is_empty(answer) for answer in answers):
        return "an empty assistant turn"
    if reason is None and not any(map(is_learned, answers)):
        return f"every answer is switched off ({', '.join(SWITCHES)}: 0 or false)"
    return reason


def place_of(conversation: Conversation, file: object) -> str:
    """Where in `file` it stands, for a person; with the first unknown role, if there is one."""
    roles = [message.get("role") for message in conversation.messages if message.get("role") not in ROLES]
    role = f", role {str(roles[0])[:40]!r}" if roles else ""
    return f"{file}:{conversation.line}{role}"


def is_no_text(message: Mapping[str, Any]) -> bool:
    """A template would fail, or put `None` or a list's source into the prompt. An assistant may call a tool and say
    nothing; what a tool gives may be an object, which templates write as JSON."""
    content = message.get("content")
    if content is None:
        return message["role"] not in ("assistant", "tool")
    return not isinstance(content, str) and message["role"] != "tool"


def _is_empty(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    has_text = isinstance(content, str) and bool(content.strip())
    return not (has_text or message.get("tool_calls") or message.get("reasoning_content"))
