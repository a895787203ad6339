"""The forms in which conversations are written down, and their common meaning. Knows no files.

- `messages`: a list of {role, content, ...}, as OpenAI and Hugging Face write it.
- `conversations`: a list of {from, value}, as ShareGPT writes it (some files use role and content inside). A text
  `system` beside either list is the system prompt, where the list has none.
- `turns`: a list of strings, `prompt` or `question`: one string; user turns without answers, as benchmarks write them.
- logs of requests and responses (`request_logs`).

Tables add two: the list as a JSON string, and the columns of its turns, {role: [...], content: [...]}, as `datasets`
stores a sequence of objects. Tool calls have one form: `function_call` turns (LLaMA-Factory) and fields (OpenAI before
`tool_calls`) become `tool_calls`, and arguments given as a JSON string the object that templates render.

Versions of transformers and servers differ in what they make of some forms, so that they are made one here: a key that
is null is not there, thoughts have all their names, and parts of text are joined: an answer's as they are, others with
a line feed, as vLLM does.

Beside the turns eyas itself writes `finished`, `temperature`, and the exact token ids: `written`, a list of
{ids: [...], answers: [[begin, end], ...]}, `written_by`, the fingerprint of the tokenizer and template they are of, and
`written_text`, a checksum of the turns.
"""

from collections.abc import Mapping
from typing import Any

from eyas.records.conversation import SWITCHES, Conversation, WrittenRow
from eyas.records.json_lines import json_of
from eyas.records.request_logs import from_log

_ROLES: Mapping[str, str] = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "observation": "tool",
    "function": "tool",
}
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")
_TEXT_PARTS = ("text", "input_text", "output_text")
_PROMPTS = ("turns", "prompt", "question")
_LOGS = ("request", "response", "input", "output", "instructions")
# What is read of a record here, by `exclusion` of one that holds a prompt only, and by `eval_rows`.
_WRITTEN = ("finished", "temperature", "written", "written_by", "written_text")
PROMPT_FIELDS = (*_PROMPTS, "instruction", "text")
_OF_EVAL = ("prompt_ids", "response_ids", "id", "set")
FIELDS = frozenset(("messages", "conversations", "system", "tools", *_WRITTEN, *PROMPT_FIELDS, *_LOGS, *_OF_EVAL))
# Beside a list of turns these hold text that is not read.
_BESIDE = ("chosen", "rejected", "documents", "context", "response", "answer", "output")


class FormUnknown(ValueError):
    """The record is in no known form; the text says what is wrong."""


def conversation_of(record: Any, source: int, line: int) -> Conversation:
    """The conversation that a record holds.

    Raises:
        FormUnknown: not an object, without a list of turns, or with turns that are not objects.
    """
    if not isinstance(record, Mapping):
        raise FormUnknown(f"the line holds a JSON {type(record).__name__}, not an object")
    lost: list[str] = []
    key = next((name for name in ("messages", "conversations") if name in record), None)
    if key is None and (read := from_log(record)) is not None:
        (record, lost), key = read, "messages"
    elif key is not None:
        lost += [f"`{name}` of a record" for name in _BESIDE if record.get(name)]
    turns = _as_list(record.get(key)) if key else _prompts(record)
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        keys = ", ".join(sorted(record)[:8])
        raise FormUnknown(f"there is no list `messages` or `conversations` of objects (keys: {keys})")
    messages = [_message(turn, lost) for turn in turns]
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
        lost=tuple(lost),
    )


def _message(given: Mapping[str, Any], lost: list[str]) -> Mapping[str, Any]:
    """A turn with `role` and `content`; a role that is not known stays as it is and is counted as unusable later."""
    turn = {key: value for key, value in given.items() if value is not None}
    if "from" in turn:
        turn = {"role": turn.pop("from"), "content": turn.pop("value", None), **turn}
        turn = {key: value for key, value in turn.items() if value is not None}
    role = turn.get("role")
    if isinstance(role, str):
        turn["role"] = role = _ROLES.get(role, role)
    if role == "function_call" and (calls := _calls_in(turn.get("content"))):
        turn = {**turn, "role": "assistant", "content": "", "tool_calls": calls}
    elif isinstance(turn.get("function_call"), Mapping):
        turn["tool_calls"] = [{"type": "function", "function": turn.pop("function_call")}]
    if isinstance(turn.get("tool_calls"), list):
        turn["tool_calls"] = [_tool_call(call) for call in turn["tool_calls"]]
        turn.setdefault("content", "")  # as SGLang and vLLM render a null
    if "content" in turn:
        turn["content"] = _one_text(turn["content"], "" if role == "assistant" else "\n", lost)
    lost += [f"a `{n}` other than 0 and 1, taken as 1" for n in SWITCHES if turn.get(n, 1) not in (0, 1)]
    thoughts = next((turn[name] for name in _THOUGHTS if name in turn), None)
    return turn if thoughts is None else {"thinking": thoughts, **turn, "reasoning_content": thoughts}


def _one_text(content: Any, seam: str, lost: list[str]) -> Any:
    """The text of a content that is a list of parts of text; any other content as it is."""
    if not isinstance(content, list) or not content:
        return content
    parts = [part for part in content if isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS]
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    if len(texts) < len(content):
        return content
    if len(texts) > 1 and seam:
        lost.append("a turn in several parts of text, joined with a line feed")
    return seam.join(texts)


def _calls_in(content: Any) -> list[Any]:
    """The calls that a `function_call` turn holds as JSON; none where it holds something else."""
    try:
        found = json_of(content) if isinstance(content, str) else content
    except (ValueError, RecursionError):
        return []
    calls = found if isinstance(found, list) else [found]
    is_call = all(isinstance(call, Mapping) and isinstance(call.get("name"), str) for call in calls)
    return [{"type": "function", "function": call} for call in calls] if is_call else []


def _as_list(turns: Any) -> Any:
    """A list of turns, where they are written in one of the forms of tables."""
    if isinstance(turns, str):
        turns = _json_in(turns, "the list of turns")
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
        raise FormUnknown("`turns` is a string, not a list of strings")  # a text here is most likely one turn too few
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


def _written(rows: Any) -> list[WrittenRow]:
    """Rows of ids with the places of their answers."""
    if rows is None:
        return []
    try:
        found = [WrittenRow(row["ids"], [(int(begin), int(end)) for begin, end in row["answers"]]) for row in rows]
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise FormUnknown(f"`written` does not hold rows of ids and answers: {type(error).__name__}: {error}") from None
    for row in found:
        if not isinstance(row.ids, list) or not row.ids or set(map(type, row.ids)) != {int}:
            raise FormUnknown("`ids` of `written` is not a list of at least one token id")
        if min(row.ids) < 0 or max(row.ids) >= 2**31:
            raise FormUnknown("`ids` of `written` holds numbers that are not token ids")
        places = [0, *(place for answer in row.answers for place in answer), len(row.ids)]
        if places != sorted(places) or len(places) == 2:
            raise FormUnknown(f"`answers` of `written` lie outside its {len(row.ids)} ids or out of order")
    return found


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 2**31 else None


def _tools(tools: Any) -> Any:
    """Tool descriptions; some files keep them, or each of them, as a JSON string (SpecForge#738). None for none."""
    if isinstance(tools, str):
        tools = _json_in(tools, "`tools`")
    if isinstance(tools, list):
        return [_json_in(tool, "a tool") if isinstance(tool, str) else tool for tool in tools] or None
    return tools or None


def _json_in(text: str, what: str) -> Any:
    """The value of `text`, a field `what` that holds JSON as a string."""
    try:
        return json_of(text)
    except (ValueError, RecursionError) as error:
        raise FormUnknown(f"{what} is a string that is not JSON ({type(error).__name__})") from None
