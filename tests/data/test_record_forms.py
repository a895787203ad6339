import pytest

from eyas.data.record_forms import FormUnknown, conversation_of


def test_sharegpt_and_messages_mean_the_same():
    sharegpt = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
    messages = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    assert conversation_of(sharegpt, 0, 1) == conversation_of(messages, 0, 1)


def test_conversations_may_hold_role_and_content_as_well():
    record = {"conversations": [{"role": "user", "content": "q"}]}
    assert conversation_of(record, 0, 1).messages == [{"role": "user", "content": "q"}]


def test_a_role_that_is_not_known_is_kept_for_the_count():
    record = {"conversations": [{"from": "narrator", "value": "q"}]}
    assert conversation_of(record, 0, 1).messages[0]["role"] == "narrator"


def test_tools_written_as_a_json_string_are_read():
    record = {"messages": [], "tools": '[{"type": "function"}]'}
    assert conversation_of(record, 0, 1).tools == [{"type": "function"}]
    with pytest.raises(FormUnknown, match="no JSON"):
        conversation_of({"messages": [], "tools": "f(x)"}, 0, 1)
