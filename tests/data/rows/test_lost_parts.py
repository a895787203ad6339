"""Everything in a record that does not reach the rows is counted by kind, and one record never ends the run."""

import json
from pathlib import Path

import pytest

from byte_tokenizer import CHATML, THINKING, save_target_with
from eyas.data.prepare import Prepared, prepare
from eyas.data.prepare_config import PrepareConfig
from eyas.data.rows.row_store import Rows
from eyas.data.text.chat_template import TemplateUnstable
from eyas.data.text.target_text import load_target_text
from eyas.models.chat_prompt import TemplateEndless
from eyas.talk import Silent

REPORTS = Path(__file__).resolve().parents[4] / "shared" / "cases" / "reports"
# As Qwen's: calls are written as JSON, tools stand in the system prompt, a turn without content is an empty one.
TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for t in tools %}{{ t | tojson }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LEFT_OUT = "left out by the chat template"
USER, ANSWER = {"role": "user", "content": "Hi there"}, {"role": "assistant", "content": "Hello!"}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target_with(tmp_path_factory.mktemp("target"))


def run(target: Path, data: Path, **options) -> Prepared:
    return prepare(target, [data], data.with_name("rows"), PrepareConfig(**options), Silent(), replace=True)


def run_on(target: Path, folder: Path, *records: dict, **options) -> Prepared:
    data = folder / "d.jsonl"
    data.write_text("".join(json.dumps(r) + "\n" for r in records))
    return run(target, data, **options)


def learned(target: Path, folder: Path) -> list[str]:
    tokenizer = load_target_text(target, {}).tokenizer
    return [
        tokenizer.decode([i for i, s in zip(r.token_ids, r.is_supervised, strict=True) if s])
        for r in Rows(folder / "rows")
    ]


@pytest.mark.skipif(not REPORTS.is_dir(), reason="the reports are not beside this checkout")
def test_reported_reasoning_under_a_template_that_ignores_it_is_counted(target: Path, tmp_path: Path):
    (tmp_path / "d.jsonl").write_bytes((REPORTS / "32-data-reasoning" / "reasoning.jsonl").read_bytes())
    done = run(target, tmp_path / "d.jsonl")
    assert (done.manifest.num_rows, done.manifest.dropped) == (4, {})
    assert done.manifest.lost == {f"reasoning of an answer, {LEFT_OUT}": 4}
    assert done.first == {f"reasoning of an answer, {LEFT_OUT}": f"{tmp_path / 'd.jsonl'}:1"}


@pytest.mark.skipif(not REPORTS.is_dir(), reason="the reports are not beside this checkout")
@pytest.mark.parametrize(
    ("name", "template", "num_rows", "dropped"),
    [
        ("hermes", CHATML, 2, 0),
        ("llamafactory", TOOLS, 2, 0),
        ("llamafactory", CHATML, 1, 1),
        ("openai", TOOLS, 2, 0),
        ("openai", CHATML, 1, 1),
    ],
)
def test_reported_tool_calls_are_rows_or_are_counted(tmp_path, name: str, template: str, num_rows: int, dropped: int):
    target = save_target_with(tmp_path / "target", template)
    (tmp_path / "d.jsonl").write_bytes((REPORTS / "31-data-toolcalls-sharegpt" / f"{name}.jsonl").read_bytes())
    done = run(target, tmp_path / "d.jsonl")
    assert (done.manifest.num_rows, sum(done.manifest.dropped.values())) == (num_rows, dropped)
    if dropped:
        (reason,) = done.manifest.dropped
        assert reason.startswith("the chat template ")
        assert done.first[reason] == f"{tmp_path / 'd.jsonl'}:1"
    elif name != "hermes":
        assert any("Oslo" in text for text in learned(target, tmp_path))


def test_reasoning_that_the_template_writes_is_not_counted_as_lost(tmp_path: Path):
    target = save_target_with(tmp_path / "target", THINKING)
    done = run_on(target, tmp_path, {"messages": [USER, {**ANSWER, "reasoning_content": "A greeting."}]})
    assert done.manifest.lost == {}


@pytest.mark.parametrize(
    ("record", "lost"),
    [
        ({"messages": [USER, ANSWER, USER]}, "a turn after the last answer"),
        ({"messages": [USER, {**ANSWER, "thinking": "hm hm"}]}, f"reasoning of an answer, {LEFT_OUT}"),
        ({"messages": [USER, ANSWER], "tools": [{"name": "look_up"}]}, f"tool descriptions, {LEFT_OUT}"),
        ({"messages": [USER, {**ANSWER, "refusal": "I must not"}]}, f"`refusal` of a turn, {LEFT_OUT}"),
        ({"messages": [USER, {**ANSWER, "weight": 0.5}]}, "a `weight` other than 0 and 1, taken as 1"),
        ({"messages": [USER, ANSWER], "documents": ["A text"]}, "`documents` of a record"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}, ANSWER]},
            "a turn in several parts of text, joined with a line feed",
        ),
        (
            {
                "request": {"messages": [USER]},
                "response": {"choices": [{"message": ANSWER}, {"message": ANSWER}]},
            },
            "a further choice of a response",
        ),
    ],
)
def test_each_part_that_does_not_reach_the_rows_is_counted(target: Path, tmp_path: Path, record: dict, lost: str):
    assert run_on(target, tmp_path, record).manifest.lost == {lost: 1}


def test_a_system_prompt_that_the_template_leaves_out_is_counted(tmp_path: Path):
    target = save_target_with(tmp_path / "target", "{% set messages = messages[1:] %}" + CHATML)
    done = run_on(target, tmp_path, {"messages": [{"role": "system", "content": "Be brief."}, USER, ANSWER]})
    assert done.manifest.lost == {f"the text of a system turn, {LEFT_OUT}": 1}


@pytest.mark.parametrize("switch", [{"weight": 0}, {"train": False}, {"weight": 0.0}, {"loss": False}])
@pytest.mark.parametrize("turns", ["joint", "split"])
def test_an_answer_that_is_switched_off_is_read_and_not_learned(target: Path, tmp_path: Path, switch, turns):
    off = {**ANSWER, **switch}
    second = [{"role": "user", "content": "Bye"}, {"role": "assistant", "content": "See you."}]
    done = run_on(target, tmp_path, {"messages": [USER, off, *second]}, {"messages": [USER, off]}, turns=turns)

    assert learned(target, tmp_path) == ["See you.<|im_end|>"]
    assert done.manifest.lost == {"an answer with weight or train or loss of 0 or false: read, not learned": 1}
    assert done.manifest.dropped == {"every answer is switched off (weight, train, loss: 0 or false)": 1}


REFUSES = "{% for m in messages %}{% if m.content == 'no' %}{{ raise_exception('not this') }}{% endif %}{% endfor %}"


@pytest.mark.parametrize("position", [0, 3, 599])
def test_a_record_that_the_template_refuses_is_left_out_and_the_others_are_kept(tmp_path: Path, position: int):
    target = save_target_with(tmp_path / "target", REFUSES + CHATML)
    records = [{"messages": [{"role": "user", "content": f"q{i}"}, ANSWER]} for i in range(600)]
    records[position] = {"messages": [{"role": "user", "content": "no"}, ANSWER]}
    done = run_on(target, tmp_path, *records, held_out=0)

    assert done.manifest.num_rows == 599
    assert done.manifest.dropped == {
        "the chat template cannot render a conversation (TemplateError: not this)": 1,
    }
    assert list(done.first.values()) == [f"{tmp_path / 'd.jsonl'}:{position + 1}"]


def test_where_every_record_is_refused_the_run_ends_with_the_reason_and_the_way_out(tmp_path: Path):
    target = save_target_with(tmp_path / "target", THINKING)
    chat = {"messages": [USER, ANSWER, {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "Bye."}]}
    with pytest.raises(TemplateUnstable, match="--turns split"):
        run_on(target, tmp_path, chat)
    done = run_on(target, tmp_path, chat, {"messages": [USER, ANSWER]})
    assert done.manifest.dropped == {"the chat template renders earlier turns differently once a later one is there": 1}


def test_a_template_without_an_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("eyas.models.chat_prompt._MOST_SECONDS", 0.2)
    monkeypatch.setattr("eyas.data.text.chat_template._MANY_SECONDS", 0.2)
    loops = "".join(f"{{% for {letter} in range(99999) %}}" for letter in "abc") + "{% endfor %}" * 3
    target = save_target_with(tmp_path / "target", loops + CHATML)
    with pytest.raises(TemplateEndless, match="data file 1, record 1"):
        run_on(target, tmp_path, {"messages": [USER, ANSWER]})


def test_a_text_that_no_row_can_hold_is_left_out_without_being_tokenised(target: Path, tmp_path: Path):
    huge = {"messages": [{"role": "user", "content": "x y " * 20_000}, ANSWER]}
    done = run_on(target, tmp_path, {"messages": [USER, ANSWER]}, huge, max_length=64)
    assert done.manifest.dropped == {"longer than 65536 characters, and so than any row": 1}
