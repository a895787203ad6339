"""Options of `eyas chat`: all that is wrong is named at once."""

import pytest

from eyas.chat.chat_config import ChatConfig, ChatConfigInvalid, ChatPromptInvalid, require_prompt_text


@pytest.mark.parametrize(("given", "depth"), [("auto", None), ("0", 0), ("1", 1), ("32", 32)])
def test_depths_that_can_be_meant(given, depth):
    assert ChatConfig(num_draft_tokens=given).depth == depth


@pytest.mark.parametrize("given", ["", "33", "-1", "1,3", "1..3", "x", "٣", "9" * 20])
def test_others_are_refused(given):
    with pytest.raises(ChatConfigInvalid, match="-k is"):
        ChatConfig(num_draft_tokens=given)


def test_all_that_is_wrong_is_named_at_once():
    with pytest.raises(ChatConfigInvalid) as caught:
        ChatConfig(max_new_tokens=0, stop=("",), threads=0, system="s", raw=True)
    assert all(name in caught.value.what for name in ("--max-new-tokens", "--stop", "--threads", "--system"))


@pytest.mark.parametrize("prompt", ["", " \n\t"])
def test_a_blank_prompt_is_refused(prompt):
    with pytest.raises(ChatPromptInvalid, match="the prompt is empty"):
        require_prompt_text(prompt, "--prompt")


def test_bytes_that_are_no_text_are_refused_wherever_they_are():
    with pytest.raises(ChatPromptInvalid, match="--prompt is not valid UTF-8"):
        require_prompt_text("a\udcff", "--prompt")
    for config in ({"system": "\udcff"}, {"stop": ("a", "\udcff")}):
        with pytest.raises(ChatPromptInvalid, match="not valid UTF-8"):
            ChatConfig(**config)
