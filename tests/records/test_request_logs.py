import json

import pytest

from eyas.records.conversation import Conversation
from eyas.records.record_forms import FormUnknown, conversation_of

USER, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
TOOL = {"type": "function", "function": {"name": "f"}}
CHAT = {
    "request": {"model": "m", "messages": [USER], "tools": [TOOL]},
    "response": {"choices": [{"message": ANSWER, "finish_reason": "stop"}]},
}
RESPONSES = {
    "request": {
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "q"}]}],
    },
    "response": {
        "status": "completed",
        "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        ],
    },
}


def read(record: dict) -> Conversation:
    return conversation_of(record, 0, 1)


def as_batch(record: dict) -> dict:
    return {"custom_id": "1", **{key: {"body": part} for key, part in record.items()}}


@pytest.mark.parametrize("wrap", [dict, as_batch, lambda r: {key: json.dumps(part) for key, part in r.items()}])
def test_a_chat_completion_is_its_messages_and_its_answer(wrap):
    found = read(wrap(CHAT))
    assert found.messages == [USER, ANSWER]
    assert (found.tools, found.is_finished, found.is_prompt, found.temperature) == ([TOOL], True, False, None)


def test_an_answer_that_was_cut_off_is_not_finished():
    cut = {**CHAT, "response": {"choices": [{"message": ANSWER, "finish_reason": "length"}]}}
    assert not read(cut).is_finished
    assert not read({**RESPONSES, "response": {**RESPONSES["response"], "status": "incomplete"}}).is_finished


@pytest.mark.parametrize("response", [None, {}, {"error": {"message": "overloaded"}}, {"choices": []}, "oops"])
def test_a_request_without_an_answer_is_a_conversation_without_one(response):
    assert read({**CHAT, "response": response}).messages == [USER]


@pytest.mark.parametrize("wrap", [dict, as_batch, lambda r: {**r["request"], **r["response"]}])
def test_the_responses_api_gives_the_same_turns_with_the_reasoning_it_shows(wrap):
    system, user, answer = read(wrap(RESPONSES)).messages
    assert (system, user) == ({"role": "system", "content": "Be brief."}, USER)
    assert (answer["content"], answer["reasoning_content"]) == ("a", "hm")


def test_calls_and_their_outputs_become_turns_of_assistant_and_tool():
    items = [
        {"type": "message", "role": "user", "content": "q"},
        {"type": "reasoning", "encrypted_content": "x"},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "5"},
        {"type": "function_call_output", "call_id": "2", "output": "6"},
    ]
    found = read({"input": items, "output": [{"type": "message", "role": "assistant", "content": "a"}]})
    assert [m["role"] for m in found.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    calls = [call["function"] for call in found.messages[1]["tool_calls"]]
    assert calls == [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]
    assert found.lost == ("reasoning that the log does not show",)


def test_two_texts_are_a_question_and_its_answer():
    assert read({"request": "q", "response": "a"}).messages == [USER, ANSWER]


@pytest.mark.parametrize("record", [{"request": 5}, {"request": {"url": "x"}}, {"request": {"messages": "x"}}])
def test_a_request_without_turns_is_of_no_known_form(record):
    with pytest.raises(FormUnknown):
        read(record)


def test_an_item_without_a_place_among_turns_keeps_its_name_to_be_counted():
    found = read({"input": "q", "output": [{"type": "web_search_call"}]})
    assert found.messages[-1] == {"role": "web_search_call"}


@pytest.mark.parametrize(
    "turn",
    [
        {"from": "function_call", "value": '{"name": "f", "arguments": {"a": 1}}'},
        {"from": "function_call", "value": '[{"name": "f", "arguments": "{\\"a\\": 1}"}]'},
        {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": '{"a": 1}'}},
    ],
)
def test_older_ways_to_write_a_call_have_one_form(turn: dict):
    (found,) = read({"conversations": [turn]}).messages
    assert (found["role"], found["content"]) == ("assistant", "")
    assert found["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]


def test_a_call_that_is_not_json_keeps_its_role_to_be_counted():
    (found,) = read({"conversations": [{"from": "function_call", "value": "f(1)"}]}).messages
    assert found["role"] == "function_call"


@pytest.mark.parametrize(("name", "role"), [("observation", "tool"), ("function", "tool"), ("human", "user")])
def test_roles_of_other_forms_are_read_under_both_keys(name: str, role: str):
    for turn in ({"from": name, "value": "x"}, {"role": name, "content": "x"}):
        assert read({"conversations": [turn]}).messages == [{"role": role, "content": "x"}]
