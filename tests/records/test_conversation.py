import pytest

from eyas.records.conversation import Conversation, why_unusable

USER, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([USER, ANSWER], None),
        ([{"role": "system", "content": "s"}, USER, ANSWER, USER, ANSWER], None),
        ([USER, ANSWER, {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}, ANSWER], None),
        ([USER, {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}], None),
        ([USER, ANSWER, {"role": "tool", "content": {"sum": 5}}, ANSWER], None),
        ([{"role": "user"}, ANSWER], "a turn whose content is not text"),
        ([{"role": "user", "content": [{"type": "image"}]}, ANSWER], "a turn whose content is not text"),
        ([{"role": "system", "content": 5}, USER, ANSWER], "a turn whose content is not text"),
        ([USER, {"role": "assistant", "content": ["a"]}], "a turn whose content is not text"),
        ([], "no messages"),
        ([USER], "no assistant turn"),
        ([ANSWER, USER, ANSWER], "starts with an assistant turn"),
        ([USER, USER, ANSWER], "two turns of one role in a row"),
        ([USER, {"role": "assistant", "content": " \n"}], "an empty assistant turn"),
        ([{"role": "narrator", "content": "x"}, ANSWER], "a role other than system, developer, user, assistant, tool"),
    ],
)
def test_each_way_to_be_unusable_has_its_reason(messages, reason):
    assert why_unusable(Conversation(messages=messages, source=0, line=1)) == reason
