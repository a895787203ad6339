"""The forms in which conversations are written down, and their common meaning. Knows no files.

- `messages`: a list of {role, content, ...}, as OpenAI and Hugging Face write it.
- `conversations`: a list of {from, value}, as ShareGPT writes it (some files use role and content inside). A text
  `system` beside either list is the system prompt, where the list has none.
- `turns`: a list of texts, `prompt` or `question`: one text; user turns without answers, as benchmarks write them.

Tables add two: the list as a JSON string, and the columns of its turns, {role: [...], content: [...]}, as `datasets`
stores a sequence of objects. Arguments of tool calls given as a JSON string become the object that templates render.

Versions of transformers differ in what they make of some forms, so that they are made one here: a key that is null is
not there, thoughts have all their names, and the content [{"type": "text", "text": T}] is T.

Beside the turns eyas itself writes `finished`, `temperature`, and the exact token ids: `written`, a list of
{ids: [...], answers: [[begin, end], ...]}, `written_by`, the fingerprint of the tokenizer and template they are of, and
`written_text`, a checksum of the turns.
"""

from collections.abc import Mapping
from typing import Any

from eyas.records.conversation import Conversation, WrittenRow
from eyas.records.json_lines import json_of

_SHAREGPT_ROLES: Mapping[str, str] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")
_PROMPTS = ("turns", "prompt", "question")
# What is read of a record here, and by `exclusion` of one that holds a prompt only.
_WRITTEN = ("finished", "temperature", "written", "written_by", "written_text")
PROMPT_FIELDS = (*_PROMPTS, "instruction", "text")
FIELDS = frozenset(("messages", "conversations", "system", "tools", *_WRITTEN, *PROMPT_FIELDS, "prompt_ids"))


class FormUnknown(ValueError):
    """The record is in no form that is known; the text says what is wrong."""


def conversation_of(record: Any, source: int, line: int) -> Conversation:
    """The conversation that a record holds.

    Raises:
        FormUnknown: no object, no list of turns, or turns that are no objects.
    """
    if not isinstance(record, Mapping):
        raise FormUnknown(f"the line holds a JSON {type(record).__name__}, not an object")
    key = next((name for name in ("messages", "conversations") if name in record), None)
    turns = _as_list(record.get(key)) if key else _prompts(record)
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        keys = ", ".join(sorted(record)[:8])
        raise FormUnknown(f"there is no list `messages` or `conversations` of objects (keys: {keys})")
    messages = [_message(turn) for turn in turns]
    system = record.get("system")
    if isinstance(system, str) and system.strip() and not any(m.get("role") == "system" for m in messages):
        messages.insert(0, {"role": "system", "content": system})
    return Conversation(
        messages=messages,
        source=source,
        line=line,
        is_finished=record.get("finished", True) is not False,
        tools=_tools(record.get("tools")),
        written=_written(record.get("written")),
        written_by=record.get("written_by"),
        written_text=record.get("written_text"),
        temperature=_number(record.get("temperature")),
        is_prompt=key is None,
    )


def _message(turn: Mapping[str, Any]) -> Mapping[str, Any]:
    """A turn with `role` and `content`; a role that is not known stays as it is and is counted as unusable later."""
    if isinstance(turn.get("tool_calls"), list):
        turn = {**turn, "tool_calls": [_tool_call(call) for call in turn["tool_calls"]]}
    if "from" in turn:
        rest = {key: value for key, value in turn.items() if key not in ("from", "value")}
        role = str(turn["from"])
        turn = {"role": _SHAREGPT_ROLES.get(role, role), "content": turn.get("value"), **rest}
    turn = {key: _one_text(value) if key == "content" else value for key, value in turn.items() if value is not None}
    thoughts = next((turn[name] for name in _THOUGHTS if name in turn), None)
    return turn if thoughts is None else {"thinking": thoughts, **turn, "reasoning_content": thoughts}


def _one_text(content: Any) -> Any:
    """The text of a content that is a list with one part of text: more parts are joined differently by each server."""
    part = content[0] if isinstance(content, list) and len(content) == 1 else None
    is_text = isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
    return part["text"] if is_text else content  # type: ignore[index]


def _as_list(turns: Any) -> Any:
    """A list of turns, where they are written in one of the forms of tables."""
    if isinstance(turns, str):
        try:
            turns = json_in(turns, "the list of turns")
        except ValueError as error:
            raise FormUnknown(str(error)) from None
    if isinstance(turns, Mapping) and turns and all(isinstance(column, list) for column in turns.values()):
        if len({len(column) for column in turns.values()}) > 1:
            raise FormUnknown("the columns of the turns differ in length")
        rows = zip(*turns.values(), strict=True)
        return [{k: v for k, v in zip(turns, row, strict=True) if v is not None} for row in rows]
    return turns


def _prompts(record: Mapping[str, Any]) -> list[dict[str, str]] | None:
    """User turns of a record that holds nothing else."""
    name = next((name for name in _PROMPTS if name in record), None)
    texts = record.get(name) if name else None
    if name == "turns" and isinstance(texts, str):
        raise FormUnknown("`turns` is a text, not a list of texts")  # as `eyas eval` reads it
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        return None
    return [{"role": "user", "content": text} for text in texts]


def _tool_call(call: Any) -> Any:
    """A tool call whose arguments are an object: a template would quote a string once more."""
    function = call.get("function") if isinstance(call, Mapping) else None
    inner = function if isinstance(function, Mapping) else call
    if not isinstance(inner, Mapping) or not isinstance(inner.get("arguments"), str):
        return call
    try:
        arguments = json_of(inner["arguments"])
    except (ValueError, RecursionError):
        return call
    if not isinstance(arguments, dict):
        return call
    made = {**inner, "arguments": arguments}
    return {**call, "function": made} if inner is function else made


def _tools(tools: Any) -> Any:
    try:
        return tools_of(tools)
    except ValueError as error:
        raise FormUnknown(str(error)) from None


def _written(rows: Any) -> list[WrittenRow]:
    """Rows of ids with the places of their answers."""
    if rows is None:
        return []
    try:
        found = [WrittenRow(row["ids"], [(int(begin), int(end)) for begin, end in row["answers"]]) for row in rows]
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise FormUnknown(f"`written` holds no rows of ids and answers: {type(error).__name__}: {error}") from None
    for row in found:
        if not isinstance(row.ids, list) or not row.ids or set(map(type, row.ids)) != {int}:
            raise FormUnknown("`ids` of `written` is no list of at least one token id")
        if min(row.ids) < 0 or max(row.ids) >= 2**31:
            raise FormUnknown("`ids` of `written` holds numbers that are no token ids")
        places = [0, *(place for answer in row.answers for place in answer), len(row.ids)]
        if places != sorted(places) or len(places) == 2:
            raise FormUnknown(f"`answers` of `written` lie outside its {len(row.ids)} ids or out of order")
    return found


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 2**31 else None


def tools_of(tools: Any) -> Any:
    """Tool descriptions; some files keep them, or each of them, as a JSON string (SpecForge#738). None for none.

    Raises:
        ValueError: a string that is no JSON; the text says so.
    """
    if isinstance(tools, str):
        tools = json_in(tools, "`tools`")
    if isinstance(tools, list):
        return [json_in(tool, "a tool") if isinstance(tool, str) else tool for tool in tools] or None
    return tools or None


def json_in(text: str, what: str) -> Any:
    """The value that `text`, a field that may hold JSON as a string, stands for; ValueError says `what` is none."""
    try:
        return json_of(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is a string that is no JSON ({type(error).__name__})") from None
