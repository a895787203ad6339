import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byte_tokenizer import CHATML, SPECIALS, THINKING, byte_tokenizer
from eyas.data.text.chat_template import ChatTemplate, Segment, TemplateRewritesAnswer, TemplateUnstable
from eyas.models.chat_prompt import TemplateFailed
from eyas.records.conversation import Conversation


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


EMPTY = "<think>\n\n</think>\n\n"
# Qwen3's two modes: without thinking, the empty tags stand in the prompt.
SWITCHED = THINKING.replace(
    "{{ '<|im_start|>assistant\n' }}",
    "{{ '<|im_start|>assistant\n' + ('<think>\n\n</think>\n\n' if enable_thinking is false else '') }}",
)
# As gpt-oss: an answer goes to a channel, which no generation prompt names; reasoning to another one before it.
HARMONY = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role }}"
    "{% if m.role == 'assistant' and m.thinking %}"
    "{{ '<|channel|>analysis<|message|>' + m.thinking + '<|im_end|><|im_start|>assistant' }}{% endif %}"
    "{% if m.role == 'assistant' %}{{ '<|channel|>final' }}{% endif %}"
    "{{ '<|message|>' + m.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% endif %}"
)


def test_what_a_template_puts_behind_the_prompt_is_written_by_the_target():
    assert [s.text for s in template(HARMONY).segments(CHAT) if s.is_supervised] == [
        "<|channel|>final<|message|>Hello!<|im_end|>",
        "<|channel|>final<|message|>See you.<|im_end|>",
    ]


def test_reasoning_under_any_name_is_supervised_with_what_stands_between_it_and_the_answer():
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!", "thinking": "Greet."}]
    assert template(HARMONY).segments(Conversation(messages=messages, source=0, line=1))[-1] == Segment(
        "<|channel|>analysis<|message|>Greet.<|im_end|><|im_start|>assistant<|channel|>final<|message|>Hello!<|im_end|>",
        True,
    )


@pytest.mark.parametrize("thinks", [True, False])
def test_empty_think_tags_are_supervised_where_the_target_writes_them_and_not_where_its_prompt_has_them(thinks: bool):
    once = conversation(("user", "Hi"), ("assistant", "Hello!"))
    switched = ChatTemplate(byte_tokenizer(SWITCHED), SPECIALS, {"enable_thinking": thinks})
    prompt, answer = switched.segments(once)
    assert (prompt.is_supervised, answer.is_supervised) == (False, True)
    assert answer.text == (EMPTY if thinks else "") + "Hello!<|im_end|>"
    assert dict(switched.inserted) == ({EMPTY: 1} if thinks else {})


@pytest.mark.parametrize("answer", ["think", "n", "\n</think>", "<", "think>\n\n<"])
def test_an_answer_that_occurs_in_what_the_template_inserts_ends_behind_it(answer: str):
    short = conversation(("user", "Hi"), ("assistant", answer))
    assert template(THINKING).segments(short)[-1] == Segment(f"{EMPTY}{answer}<|im_end|>", True)


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

    assert [row[-1] for row in rows] == [
        Segment(f"{EMPTY}Hello!<|im_end|>", True),
        Segment(f"{EMPTY}See you.<|im_end|>", True),
    ]
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


@pytest.mark.parametrize(
    ("refusing", "why"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ 1 / (messages | length - 3) }}{{ messages[7].content }}", "list object has no element 7"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "OverflowError"),
        ("{{ '\\ud800' }}", "half of a surrogate pair"),
        ("{{ 'x' * 17000000 }}", "more than any context"),
    ],
)
def test_what_the_template_refuses_is_told_with_its_record(refusing, why):
    with pytest.raises(TemplateFailed) as caught:
        template(refusing).segments(CHAT)
    assert why in caught.value.why
    with pytest.raises(TemplateFailed, match=r"data file 1, record 3"):
        template(refusing).render(CHAT, 1, for_generation=True)
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


@pytest.mark.parametrize("content", ["", "Let me add."])
def test_a_call_that_the_template_leaves_out_is_refused_not_learned_as_an_empty_answer(content: str):
    call = {"function": {"name": "add", "arguments": {"a": 2}}}
    messages = [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": content, "tool_calls": [call]}]
    with pytest.raises(TemplateRewritesAnswer, match="leaves out a call") as caught:
        template(CHATML).segments(Conversation(messages=messages, source=0, line=3))
    assert "the data calls add" in caught.value.why


COHERE = CHATML.replace("'<|im_end|>\n' }}{% endfor", "'<|im_end|><|pad|>' }}{% endfor")


@pytest.mark.parametrize(("stops", "end"), [((), "<|im_end|>"), (("<|pad|>",), "<|im_end|><|pad|>")])
def test_a_stop_token_right_behind_the_closing_token_is_written_by_the_target(stops: tuple[str, ...], end: str):
    assert COHERE != CHATML
    made = ChatTemplate(byte_tokenizer(COHERE), SPECIALS, {}, stops)
    assert [s.text for s in made.segments(CHAT) if s.is_supervised] == [f"Hello!{end}", f"See you.{end}"]


@pytest.mark.parametrize("split", [False, True])
def test_a_prompt_that_no_finished_turn_begins_with_is_not_said_to_be_helped_by_splitting(split: bool):
    """As Gemma 4 and DeepSeek-R1: the generation prompt ends with thoughts that the history leaves out."""
    opened = template(CHATML.replace("{{ '<|im_start|>assistant\n' }}", "{{ '<|im_start|>assistant\n<think>\n' }}"))
    with pytest.raises(TemplateUnstable) as caught:
        (opened.segments_by_turn if split else opened.segments)(CHAT)
    assert "--regenerate" in caught.value.do
    assert "split" not in caught.value.do


@pytest.mark.parametrize("answer", ["n", "think", "Yes. "])
def test_where_nothing_closes_a_turn_the_answer_is_what_stands_at_its_end(answer: str):
    """As GLM-4.5: the next turn's token ends an answer, and this turn has none."""
    bare = template(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% if m.role == 'assistant' %}{{ '<think></think>\n' }}{% endif %}{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    assert bare.segments(conversation(("user", "Hi"), ("assistant", answer)))[-1] == Segment(
        f"<think></think>\n{answer}", True
    )


def test_many_are_rendered_as_one_by_one_whatever_tools_they_have():
    talks = [
        CHAT,
        *(
            conversation(("user", "z"), tools=[tool])
            for tool in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"b": 2, "a": True})
        ),
        conversation(("user", "x"), tools=[{"name": "f"}]),
        conversation(("user", "y"), tools=[{"name": "f"}]),
        CHAT,
    ]
    both = template(TOOLS)
    lengths = [3, 1, 1, 1, 1, 1, 4]
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


pieces = st.lists(
    st.sampled_from(["<|im_start|>", "<|im_end|>", "assistant", "\n", " ", "<think>", "</think>", "n", "Hi", "final"]),
    max_size=4,
).map("".join)


@settings(max_examples=150, deadline=None)
@given(
    header=pieces, in_prompt=pieces, inserted=pieces, after=st.sampled_from(["", "\n", "\n\n"]),
    answers=st.lists(text | st.sampled_from(["n", "Hi", "final", "</think>", "assistant"]), min_size=1, max_size=3),
    split=st.booleans(),
)  # fmt: skip
def test_supervised_is_all_between_the_generation_prompt_and_the_end_of_the_turn_whatever_a_template_inserts(
    header, in_prompt, inserted, after, answers, split
):
    """The template is known by its parts here, so the mask can be told without looking for anything."""
    made = template(
        "{% for m in messages %}{% if m.role == 'user' %}{{ '<|im_start|>' + m.content + '<|im_end|>' }}{% else %}"
        f"{{{{ {header + in_prompt + inserted!r} + m.content + '<|im_end|>' + {after!r} }}}}{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ {header + in_prompt!r} }}}}{{% endif %}}"
    )
    talk = conversation(*(turn for answer in answers for turn in (("user", "q"), ("assistant", answer))))
    rows = made.segments_by_turn(talk) if split else [made.segments(talk)]

    wanted = [f"{inserted}{answer}<|im_end|>" for answer in answers]
    assert [s.text for row in rows for s in row if s.is_supervised] == wanted
    question = f"<|im_start|>q<|im_end|>{header}{in_prompt}"
    whole = [f"{after if i else ''}{question}{answer}" for i, answer in enumerate(wanted)]
    texts = ["".join(whole[: i + 1]) for i in range(len(answers))] if split else ["".join(whole)]
    assert ["".join(s.text for s in row) for row in rows] == texts
