import json
import unicodedata
from pathlib import Path

import pytest

from byte_tokenizer import byte_tokenizer
from eyas.data.rows.exclusion import Exclusion
from eyas.records.conversation import Conversation
from eyas.records.data_files import DataMalformed

PROMPT = "How many apples does Mia have if she buys three bags of seven?"


def asked(*turns: str) -> Conversation:
    return Conversation(messages=[{"role": "user", "content": t} for t in turns], source=0, line=1)


@pytest.mark.parametrize(
    ("turn", "is_held"),
    [
        (PROMPT, True),
        (f"Please: {PROMPT.upper()} Thanks.", True),
        ("how many apples does  mia have\nif she sells some?", True),
        ("“How many apples, does Mia (have) if she buys three...”", True),
        ("How many pears does Mia have if she buys three?", False),
        ("", False),
    ],
)
def test_a_prompt_is_found_wherever_it_stands_and_its_topic_alone_is_not(turn, is_held):
    assert Exclusion([PROMPT]).holds(asked("hello", turn)) == is_held


ZURICH = "Wie viele Äpfel isst Élodie in Zürich an einem Tag, wenn sie groß ist?"
CHINESE = "请用三句话解释什么是量子纠缠,并举一个日常生活中的例子。"


@pytest.mark.parametrize(
    ("prompt", "turn"),
    [
        (ZURICH, unicodedata.normalize("NFD", ZURICH)),
        (unicodedata.normalize("NFD", ZURICH), f"Sag mir: {ZURICH.upper()}"),
        (PROMPT, PROMPT.replace("apples", "ap\u00adples").replace("does", "do\u200bes")),
        (PROMPT, "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in PROMPT)),  # full width
        (CHINESE, f"你好！{CHINESE}谢谢"),
    ],
)
def test_another_way_to_write_a_prompt_is_the_same_prompt(prompt: str, turn: str):
    assert Exclusion([prompt]).holds(asked(turn))


def test_a_topic_in_a_script_without_spaces_is_not_the_prompt():
    assert not Exclusion([CHINESE]).holds(asked("请解释什么是量子纠缠。"))


def test_a_short_prompt_is_found_as_a_whole_turn_only():
    short = Exclusion(["Tell me a joke."])
    assert short.holds(asked("tell me a  joke."))
    assert not short.holds(asked("tell me a joke. And then another."))


def test_a_prompt_without_a_word_is_held_as_it_stands():
    marks = Exclusion(["?!"])
    assert marks.holds(asked("?!"))
    assert not marks.holds(asked(""))
    assert not marks.holds(asked("..."))


def test_nothing_excluded_holds_nothing():
    assert not Exclusion([]).holds(asked(PROMPT))


@pytest.mark.parametrize(
    "record",
    [
        {"turns": ["first", PROMPT]},
        {"prompt": PROMPT},
        {"messages": [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": "21"}]},
        {"prompt": "Hi", "messages": [{"role": "user", "content": "Hi"}, {"role": "user", "content": PROMPT}]},
        {"prompt_ids": byte_tokenizer()(f"<|im_start|>user\n{PROMPT}<|im_end|>\n")["input_ids"]},
    ],
)
def test_prompts_are_read_in_the_forms_that_evaluation_files_have(tmp_path: Path, record):
    path = tmp_path / "bench.jsonl"
    path.write_text(json.dumps(record) + "\n")
    assert Exclusion.read([path], byte_tokenizer()).holds(asked(PROMPT))


def test_prompts_are_read_from_tables_too(tmp_path: Path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist([{"question": PROMPT, "answer": "21"}]), tmp_path / "bench.parquet")
    assert Exclusion.read([tmp_path / "bench.parquet"], byte_tokenizer()).holds(asked(PROMPT))


def test_a_line_without_a_prompt_is_refused_since_it_would_exclude_nothing(tmp_path: Path):
    path = tmp_path / "bench.jsonl"
    path.write_text('{"answer": "21"}\n')
    with pytest.raises(DataMalformed, match="does not hold a prompt"):
        Exclusion.read([path], byte_tokenizer())


@pytest.mark.parametrize(
    "line", ["[" * 200_000, '{"prompt_ids": ["x"]}', '{"prompt_ids": [-1]}', '{"prompt_ids": 1e99}']
)
def test_a_line_that_holds_no_prompt_is_named(tmp_path: Path, line: str):
    path = tmp_path / "bench.jsonl"
    path.write_text(f"{json.dumps({'prompt': PROMPT})}\n{line}\n")
    with pytest.raises(DataMalformed) as caught:
        Exclusion.read([path], byte_tokenizer())
    assert caught.value.where == f"{path}:2"
