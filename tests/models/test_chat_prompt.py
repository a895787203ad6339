"""Prompts of eval, infer and bench under a chat template: what it is given, and what it refuses."""

import json
from pathlib import Path

import pytest

from eyas.bench.bench_engine import TargetTokenizer
from eyas.models.chat_prompt import TemplateFailed, prompt_ids
from eyas.models.placement import place
from eyas.records.eval_rows import EvalPrompt
from eyas.replay.answers import answer_prompts
from eyas.talk import Silent
from tiny_tokenizer import TEMPLATE, tiny_tokenizer

ASKED = EvalPrompt(id="q7", set="s", messages=({"role": "user", "content": "w1 w2"},), tools=[{"name": "w9"}])


def target_with(template: str, folder: Path) -> Path:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


def test_ids_are_those_that_the_tokenizers_own_function_gives():
    tokenizer = tiny_tokenizer()
    own = tokenizer.apply_chat_template(list(ASKED.messages), add_generation_prompt=True, return_dict=False)

    assert prompt_ids(tokenizer, ASKED.messages, None, "here") == tuple(own)


def test_tools_of_a_record_reach_the_template(tmp_path: Path):
    target = target_with("{{ tools[0].name }} " + TEMPLATE, tmp_path)

    assert TargetTokenizer(target).prompt_ids(ASKED)[0] == tiny_tokenizer().convert_tokens_to_ids("w9")


def test_a_template_that_refuses_a_prompt_is_told_with_the_row(tmp_path: Path):
    target = target_with("{{ raise_exception('no') }}", tmp_path)

    with pytest.raises(TemplateFailed, match="row q7"):
        TargetTokenizer(target).prompt_ids(ASKED)
    with pytest.raises(TemplateFailed, match="row q7"):
        answer_prompts(target, place("float32", "cpu"), [ASKED], 4, Silent())
