import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byte_tokenizer import CHATML, SPECIALS, THINKING, byte_tokenizer
from eyas.data.chat_template import ChatTemplate, Segment, TemplateFailed, TemplateRewritesAnswer, TemplateUnstable
from eyas.data.conversation import Conversation


def conversation(*turns: tuple[str, str], **options) -> Conversation:
    messages = [{"role": role, "content": content} for role, content in turns]
    return Conversation(messages=messages, source=0, line=3, **options)


def template(text: str = CHATML) -> ChatTemplate:
    return ChatTemplate(byte_tokenizer(text), SPECIALS, {})


CHAT = conversation(("user", "Hi"), ("assistant", "Hello!"), ("user", "Bye"), ("assistant", "See you."))


def test_answers_and_the_token_that_closes_them_are_supervised_and_nothing_else():
    assert template().segments(CHAT) == [
        Segment("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", False),
        Segment("Hello!<|im_end|>", True),
        Segment("\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n", False),
        Segment("See you.<|im_end|>", True),
    ]


def test_a_cut_off_answer_teaches_nobody_to_stop():
    cut = conversation(("user", "Hi"), ("assistant", "Hello and"), is_finished=False)
    assert template().segments(cut)[-1] == Segment("Hello and", True)


def test_an_answer_that_repeats_what_the_template_inserts_is_found_at_its_place():
    echo = conversation(("user", "x"), ("assistant", "<|im_end|> is a token"))
    assert template().segments(echo)[-1] == Segment("<|im_end|> is a token<|im_end|>", True)


def test_empty_think_tags_of_the_template_are_not_supervised():
    once = conversation(("user", "Hi"), ("assistant", "Hello!"))
    assert template(THINKING).segments(once)[-2:] == [
        Segment("<think>\n\n</think>\n\n", False),
        Segment("Hello!<|im_end|>", True),
    ]


@pytest.mark.parametrize("answer", ["think", "n", "\n</think>", "<", "think>\n\n<"])
def test_an_answer_that_occurs_in_what_the_template_inserts_is_found_behind_it(answer: str):
    short = conversation(("user", "Hi"), ("assistant", answer))
    assert template(THINKING).segments(short)[-2:] == [
        Segment("<think>\n\n</think>\n\n", False),
        Segment(f"{answer}<|im_end|>", True),
    ]


def test_reasoning_that_the_target_wrote_is_supervised():
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!", "reasoning_content": "A greeting."},
    ]
    thought = Conversation(messages=messages, source=0, line=1)
    assert template(THINKING).segments(thought)[-1] == Segment(
        "<think>\nA greeting.\n</think>\n\nHello!<|im_end|>", True
    )


@pytest.mark.parametrize(
    ("is_finished", "supervised"),
    [(True, "<think>\nA greeting.\n</think>\n\n<|im_end|>"), (False, "<think>\nA greeting.")],
)
def test_reasoning_alone_is_supervised_as_far_as_it_was_written(is_finished: bool, supervised: str):
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "reasoning_content": "A greeting."},
    ]
    thought = Conversation(messages=messages, source=0, line=1, is_finished=is_finished)
    assert template(THINKING).segments(thought)[-1] == Segment(supervised, True)


def test_a_template_that_rewrites_earlier_turns_is_refused_with_the_record_and_the_way_out():
    with pytest.raises(TemplateUnstable) as caught:
        template(THINKING).segments(CHAT)

    assert "data file 1, record 3, turn 4" in str(caught.value)
    assert "--turns split" in caught.value.do


def test_split_by_turn_gives_each_answer_the_prompt_that_the_target_would_read():
    rows = template(THINKING).segments_by_turn(CHAT)

    assert [row[-1] for row in rows] == [Segment("Hello!<|im_end|>", True), Segment("See you.<|im_end|>", True)]
    assert "<think>" not in rows[1][0].text
    assert rows[1][0].text.endswith("Bye<|im_end|>\n<|im_start|>assistant\n")


def test_an_answer_that_the_template_changes_is_refused():
    shouting = CHATML.replace("m.content", "m.content | upper")
    with pytest.raises(TemplateRewritesAnswer) as caught:
        template(shouting).segments(CHAT)
    assert "'Hello!'" in caught.value.why


def test_an_answer_that_the_template_trims_is_supervised_as_it_is_rendered():
    padded = conversation(("user", "Hi"), ("assistant", "  Hello! \n"))
    trimming = CHATML.replace("m.content", "m.content | trim")
    assert template(trimming).segments(padded)[-1] == Segment("Hello!<|im_end|>", True)


def test_what_the_template_refuses_is_told_with_its_record():
    refusing = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(TemplateFailed) as caught:
        template(refusing).segments(CHAT)
    assert "roles must alternate" in caught.value.why
    assert caught.value.where == "data file 1, record 3"


text = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=20).filter(str.strip)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(text, text), min_size=1, max_size=4))
def test_the_segments_are_the_rendered_text_and_its_answers_for_any_content(pairs):
    turns = [(role, content) for pair in pairs for role, content in zip(("user", "assistant"), pair, strict=True)]
    talk = conversation(*turns)
    segments = template().segments(talk)

    rendered = template().render(talk, len(turns))
    assert rendered == "".join(segment.text for segment in segments) + "\n"
    assert [s.text for s in segments if s.is_supervised] == [f"{answer}<|im_end|>" for _, answer in pairs]


TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
    "{% for call in m.tool_calls or [] %}{{ '<call>' + (call.function | tojson) + '</call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_tools_go_to_the_template_and_a_call_is_supervised_but_its_result_is_not():
    messages = [
        {"role": "user", "content": "2+3?"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": {"a": 2}}}]},
        {"role": "tool", "content": "5"},
        {"role": "assistant", "content": "It is 5."},
    ]
    called = Conversation(messages=messages, source=0, line=1, tools=[{"name": "add"}])
    segments = template(TOOLS).segments(called)

    assert segments[0].text.startswith('<|im_start|>system\n[{"name": "add"}]<|im_end|>\n')
    assert [s.text for s in segments if s.is_supervised] == [
        '<call>{"name": "add", "arguments": {"a": 2}}</call><|im_end|>',
        "It is 5.<|im_end|>",
    ]
    assert "<|im_start|>tool\n5<|im_end|>" in segments[2].text


@pytest.mark.parametrize(
    ("thinks", "opening"), [(True, "assistant\n<think>\n"), (False, "assistant\n<think></think>\n")]
)
def test_options_of_the_template_turn_thinking_on_and_off(thinks: bool, opening: str):
    text = CHATML.replace(
        "{{ '<|im_start|>assistant\n' }}",
        "{{ '<|im_start|>assistant\n' + ('<think>\n' if enable_thinking else '<think></think>\n') }}",
    )
    switched = ChatTemplate(byte_tokenizer(text), SPECIALS, {"enable_thinking": thinks})
    assert switched.render(CHAT, 1, for_generation=True).endswith(opening)


def test_many_are_rendered_as_one_by_one_whatever_tools_they_have():
    talks = [
        CHAT,
        conversation(("user", "x"), tools=[{"name": "f"}]),
        conversation(("user", "y"), tools=[{"name": "f"}]),
        CHAT,
    ]
    both = template(TOOLS)
    lengths = [3, 1, 1, 4]
    for for_generation in (False, True):
        assert both.render_many(talks, lengths, for_generation=for_generation) == [
            both.render(c, length, for_generation=for_generation) for c, length in zip(talks, lengths, strict=True)
        ]


def test_of_many_the_one_that_the_template_refuses_is_named():
    refusing = "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('no') }}{% endif %}{% endfor %}"
    good = Conversation(messages=CHAT.messages, source=0, line=7)
    bad = Conversation(messages=[{"role": "user", "content": "bad"}], source=1, line=9)
    with pytest.raises(TemplateFailed) as caught:
        template(refusing).render_many([good, bad, good], [1, 1, 1])
    assert caught.value.where == "data file 2, record 9"
