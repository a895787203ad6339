import json

import pytest

from eyas.records.conversation import WrittenRow
from eyas.records.record_forms import FormUnknown, conversation_of


def test_sharegpt_and_messages_mean_the_same():
    sharegpt = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
    messages = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    assert conversation_of(sharegpt, 0, 1) == conversation_of(messages, 0, 1)


def test_conversations_may_hold_role_and_content_as_well():
    record = {"conversations": [{"role": "user", "content": "q"}]}
    assert conversation_of(record, 0, 1).messages == [{"role": "user", "content": "q"}]


def test_a_system_prompt_beside_the_list_is_read_where_the_list_has_none():
    turns = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    found = conversation_of({"system": "Be kind.", "conversations": turns}, 0, 1).messages
    assert found[0] == {"role": "system", "content": "Be kind."}
    own = [{"from": "system", "value": "Be brief."}, *turns]
    for record in ({"system": "Be kind.", "conversations": own}, {"system": " ", "conversations": own}):
        assert conversation_of(record, 0, 1).messages[0]["content"] == "Be brief."


def test_a_role_that_is_not_known_is_kept_for_the_count():
    record = {"conversations": [{"from": "narrator", "value": "q"}]}
    assert conversation_of(record, 0, 1).messages[0]["role"] == "narrator"


def test_tools_written_as_a_json_string_are_read():
    record = {"messages": [], "tools": '[{"type": "function"}]'}
    assert conversation_of(record, 0, 1).tools == [{"type": "function"}]
    with pytest.raises(FormUnknown, match="not JSON"):
        conversation_of({"messages": [], "tools": "f(x)"}, 0, 1)


def test_turns_as_a_json_string_and_as_columns_are_read():
    plain = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    text = {"messages": json.dumps(plain["messages"])}
    columns = {"messages": {"role": ["user", "assistant"], "content": ["q", "a"]}}
    assert conversation_of(text, 0, 1) == conversation_of(columns, 0, 1) == conversation_of(plain, 0, 1)
    with pytest.raises(FormUnknown, match="differ in length"):
        conversation_of({"messages": {"role": ["user"], "content": ["q", "a"]}}, 0, 1)
    with pytest.raises(FormUnknown, match="not JSON"):
        conversation_of({"messages": "hello"}, 0, 1)


def test_each_tool_may_be_a_json_string():
    assert conversation_of({"messages": [], "tools": ['{"type": "function"}']}, 0, 1).tools == [{"type": "function"}]


@pytest.mark.parametrize(
    ("call", "read"),
    [
        ({"function": {"name": "f", "arguments": '{"a":1}'}}, {"function": {"name": "f", "arguments": {"a": 1}}}),
        ({"name": "f", "arguments": '{"a":1}'}, {"name": "f", "arguments": {"a": 1}}),
        ({"name": "f", "arguments": "a=1"}, {"name": "f", "arguments": "a=1"}),
        ({"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {"a": 1}}),
    ],
)
def test_arguments_of_a_tool_call_become_an_object(call, read):
    record = {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
    assert conversation_of(record, 0, 1).messages[0]["tool_calls"] == [read]


def turn_of(**turn: object) -> dict[str, object]:
    return dict(conversation_of({"messages": [turn]}, 0, 1).messages[0])


def test_what_versions_of_transformers_read_differently_has_one_form():
    assert turn_of(role="user", content=[{"type": "text", "text": "q"}]) == {"role": "user", "content": "q"}
    image = [{"type": "text", "text": "q"}, {"type": "image"}]
    assert turn_of(role="user", content=image)["content"] == image
    assert turn_of(role="assistant", content=None, tool_calls=None) == {"role": "assistant"}
    called = turn_of(role="assistant", content=None, tool_calls=[{"name": "f"}])
    assert called["content"] == ""  # templates that add it to a text fail without it
    for name in ("reasoning_content", "thinking", "reasoning"):
        found = turn_of(role="assistant", content="a", **{name: "hm"})
        assert (found["reasoning_content"], found["thinking"]) == ("hm", "hm")


@pytest.mark.parametrize(
    "record",
    [{"messages": '[{"role": "user", "content": "\\ud800"}]'}, {"messages": [], "tools": ['{"name": "\\ud800"}']}],
)
def test_half_a_surrogate_pair_in_a_json_string_is_refused(record):
    with pytest.raises(FormUnknown, match="UnicodeEncodeError"):
        conversation_of(record, 0, 1)


@pytest.mark.parametrize("value", [True, "0", 10**400, float("inf"), float("nan"), [0]])
def test_a_temperature_that_is_no_number_is_not_known(value):
    assert conversation_of({"messages": [], "temperature": value}, 0, 1).temperature is None


WRITTEN = {"ids": [1, 2, 3], "answers": [[1, 3]]}


def test_the_ids_that_a_target_wrote_are_read_with_what_they_are_of():
    found = conversation_of({"messages": [], "written": [WRITTEN], "written_by": "x", "temperature": 0.7}, 0, 1)
    assert found.written == [WrittenRow([1, 2, 3], [(1, 3)])]
    assert (found.written_by, found.temperature) == ("x", 0.7)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ids": [1, 2], "answers": [[1, 3]]},
        {"ids": [1, 2, 3], "answers": [[2, 1]]},
        {"ids": [1, 2, 3], "answers": []},
        {"ids": [1, -2, 3], "answers": [[1, 3]]},
        {"ids": [1, 2**31, 3], "answers": [[1, 3]]},
        {"ids": [1, 2**80, 3], "answers": [[1, 3]]},
        {"ids": [1, "2", 3], "answers": [[1, 3]]},
        {"ids": [True, 2, 3], "answers": [[1, 3]]},
        {"ids": [], "answers": []},
        {"ids": 5, "answers": [[1, 3]]},
        {"ids": [1, 2, 3], "answers": [[0, float("inf")]]},
        {"answers": [[1, 3]]},
        "x",
    ],
)
def test_ids_that_are_none_and_places_outside_them_are_refused(wrong):
    with pytest.raises(FormUnknown, match="written"):
        conversation_of({"messages": [], "written": [wrong]}, 0, 1)


@pytest.mark.parametrize("record", [{"turns": ["a", "b"]}, {"prompt": "a"}, {"question": "a", "answer": "7"}])
def test_prompts_alone_are_user_turns(record):
    found = conversation_of(record, 0, 1).messages
    assert [m["role"] for m in found] == ["user"] * len(found)
    assert found[0]["content"] == "a"


def test_turns_that_are_a_text_are_refused_as_eval_refuses_them():
    with pytest.raises(FormUnknown, match="not a list"):
        conversation_of({"turns": "abc"}, 0, 1)
