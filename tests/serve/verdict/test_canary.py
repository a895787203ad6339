"""Canaries speak the target's own chat form; looping answers are recognised."""

import json
import random
from pathlib import Path

import pytest

from eyas.serve.verdict.canary import canary_prompts, loops, render_chat

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def folder(tmp_path: Path, template: object, *, post_processor: object = None, **config: object) -> Path:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, **config}))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"post_processor": post_processor}))
    return tmp_path


def test_a_question_is_rendered_as_the_target_was_trained_to_be_asked(tmp_path: Path):
    assert render_chat(folder(tmp_path, CHATML), "Hi?") == "<|im_start|>user\nHi?<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_in_its_own_file_wins(tmp_path: Path):
    (tmp_path / "chat_template.jinja").write_text("Q {{ messages[0].content }} A")

    assert render_chat(folder(tmp_path, CHATML), "Hi?") == "Q Hi? A"


def test_a_begin_token_that_the_tokenizer_adds_itself_is_not_sent_twice(tmp_path: Path):
    template = "{{ bos_token }}Q {{ messages[0].content }}"
    adds = {"type": "TemplateProcessing", "special_tokens": {"<s>": {"id": "<s>", "ids": [1]}}}

    assert render_chat(folder(tmp_path, template, bos_token="<s>", post_processor=adds), "Hi?") == "Q Hi?"
    assert render_chat(folder(tmp_path, template, bos_token={"content": "<s>"}), "Hi?") == "<s>Q Hi?"


@pytest.mark.parametrize(
    "template", [None, "{{ raise_exception('no') }}", "{% bad", [{"name": "tool_use", "template": "x"}]]
)
def test_a_template_that_cannot_be_used_gives_plain_text_and_says_so(tmp_path: Path, template: object):
    canaries = canary_prompts(folder(tmp_path, template))

    assert str(canaries.prompts[0]).startswith("Question: ")
    assert "plain text" in canaries.note


def test_a_template_cannot_reach_outside_its_sandbox(tmp_path: Path):
    evil = "{{ ''.__class__.__mro__[1].__subclasses__() }}"

    assert "plain text" in canary_prompts(folder(tmp_path, evil)).note


def test_looping_text_is_recognised_and_ordinary_text_is_not():
    dice = random.Random(7)
    words = [dice.choice(["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "hill"]) for _ in range(128)]

    assert loops([5, 6, 7] * 40)
    assert loops(["very"] * 100)
    assert not loops(list(range(128)))
    assert not loops(words)
    assert not loops([5, 6, 7])
