"""What of a record does not reach the rows made of it: thoughts that a template leaves out, a last turn of the user.

A row that looks whole may teach less than its record says. So each part is looked for in the rendered text, and what is
not found is counted by kind.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eyas.records.conversation import SWITCHES, Conversation, is_learned

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
