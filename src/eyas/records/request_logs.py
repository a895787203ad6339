"""Logs of OpenAI-compatible servers as records with `messages`: Chat Completions and the Responses API.

- {"request": {"messages": [...], "tools": [...]}, "response": {"choices": [{"message": ..., "finish_reason": ...}]}};
- {"request": {"input": ..., "instructions": ...}, "response": {"output": [...], "status": ...}}, or both on one level;
- {"request": TEXT, "response": TEXT};
each also under a `body`, as batches keep it, and as a JSON string.

Sources: OpenAI's API reference (Chat Completions, Responses, Batch).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from eyas.records.json_lines import json_of


def from_log(record: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]] | None:
    """The record as one with `messages`, and which of its parts have no place in it; None where it is not a log."""
    if isinstance(record.get("output"), list) and "input" in record:
        request, response = record, record  # of the Responses API, both on one level
    elif "request" in record:
        request, response = _body(record["request"]), _body(record.get("response"))
    else:
        return None
    if isinstance(request, str):
        turns: list[Any] = [{"role": "user", "content": request}]
        answer = [{"role": "assistant", "content": response}] if isinstance(response, str) else []
        return {"messages": turns + answer}, []
    if not isinstance(request, Mapping) or not ("messages" in request or "input" in request):
        return None
    answered: Mapping[str, Any] = response if isinstance(response, Mapping) else {}
    lost: list[str] = []
    if "messages" in request:
        messages, is_finished = _chat(request["messages"], answered, lost)
    else:
        messages, is_finished = _responses(request, answered, lost)
    return {"messages": messages, "tools": request.get("tools"), "finished": is_finished}, lost


def _body(part: Any) -> Any:
    if isinstance(part, str) and part.lstrip().startswith("{"):
        try:
            part = json_of(part)
        except (ValueError, RecursionError):
            return part
    return _body(part["body"]) if isinstance(part, Mapping) and "body" in part else part


def _chat(messages: Any, response: Mapping[str, Any], lost: list[str]) -> tuple[Any, bool]:
    choices = [choice for choice in _list(response.get("choices")) if isinstance(choice, Mapping)]
    lost += ["a further choice of a response"] * (len(choices) - 1)
    if not choices or not isinstance(messages, list) or not isinstance(choices[0].get("message"), Mapping):
        return messages, True
    return [*messages, {"role": "assistant", **choices[0]["message"]}], choices[0].get("finish_reason") != "length"


def _responses(request: Mapping[str, Any], response: Mapping[str, Any], lost: list[str]) -> tuple[list[Any], bool]:
    asked, instructions = request.get("input"), request.get("instructions")
    items = [{"role": "user", "content": asked}] if isinstance(asked, str) else _list(asked)
    turns = [{"role": "system", "content": instructions}] if isinstance(instructions, str) and instructions else []
    thoughts = ""
    for item in [*items, *_list(response.get("output"))]:
        kind = item.get("type") or "message" if isinstance(item, Mapping) else "item that is not an object"
        if kind == "reasoning":
            shown = _thoughts(item)
            lost += [] if shown else ["reasoning that the log does not show"]
            thoughts += "\n".join(shown)
            continue
        turn = _turn(item, kind)
        if turn["role"] == "assistant":
            if thoughts:
                turn, thoughts = {**turn, "reasoning_content": thoughts}, ""
            if turns and turns[-1]["role"] == "assistant":
                calls = [*turns[-1].get("tool_calls", ()), *turn.get("tool_calls", ())]
                turn = {**turns.pop(), **turn} | ({"tool_calls": calls} if calls else {})
        turns.append(turn)
    return turns, response.get("status") != "incomplete"


def _turn(item: Any, kind: str) -> dict[str, Any]:
    """One item as a turn; a kind without a place among turns keeps its name as role, and is counted as unknown."""
    if kind == "message":
        return {"role": item.get("role"), "content": item.get("content")}
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
    return {"role": kind}


def _thoughts(item: Mapping[str, Any]) -> Sequence[str]:
    parts = _list(item.get("content")) or _list(item.get("summary"))
    return [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
