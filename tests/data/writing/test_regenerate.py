"""The target's own answers in place of recorded ones, turn by turn."""

import json
from pathlib import Path

import pytest

from byte_tokenizer import CHATML, THINKING, save_target_with
from eyas.data.prepare import PrepareConfig, Prepared, prepare
from eyas.data.prepare_config import ConfigInvalid, WritingConfig
from eyas.data.rows.row_store import Rows
from eyas.models.chat_prompt import TemplateFailed
from eyas.talk import Silent
from recorded_writer import TOKENIZER, RecordedWriter

CHAT = [("user", "Hi"), ("assistant", "Recorded."), ("user", "And?"), ("assistant", "Recorded too.")]
TOOL = [("user", "Sum?"), ("assistant", "calling"), ("tool", "3"), ("assistant", "It is 3.")]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target_with(tmp_path_factory.mktemp("target"))


def write(path: Path, *conversations: list[tuple[str, str]]) -> Path:
    records = [{"messages": [{"role": r, "content": c} for r, c in turns]} for turns in conversations]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def run(target: Path, data: list[str | Path], out: Path, writer: RecordedWriter, **options) -> Prepared:
    writing = WritingConfig(regenerate=True, device="cpu", **options)
    return prepare(target, data, out, PrepareConfig(), Silent(), writing=writing, writer=writer.open)


def texts(folder: Path) -> list[str]:
    return [TOKENIZER.decode(row.token_ids) for row in Rows(folder)]


def test_user_turns_stay_and_each_answer_follows_what_the_target_said_before(target: Path, tmp_path: Path):
    data = write(tmp_path / "d.jsonl", CHAT, [("system", "Be brief."), *CHAT[:2]])
    writer = RecordedWriter(lambda phase, prompt: f"new {phase[-1]}")
    run(target, [data], tmp_path / "rows", writer)

    first, second = texts(tmp_path / "rows")
    assert first.split("<|im_end|>") == [
        "<|im_start|>user\nHi",
        "\n<|im_start|>assistant\nnew 1",
        "\n<|im_start|>user\nAnd?",
        "\n<|im_start|>assistant\nnew 2",
        "",
    ]
    assert second.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi")
    assert [len(writer.asked[phase]) for phase in ("answer-1", "answer-2")] == [2, 1]


def test_an_answer_that_is_cut_off_ends_the_conversation(target: Path, tmp_path: Path):
    run(target, [write(tmp_path / "d.jsonl", CHAT)], tmp_path / "rows", RecordedWriter(lambda *_: "on and on…"))
    assert texts(tmp_path / "rows") == ["<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\non and on"]


def test_what_a_tool_said_to_the_recorded_answer_is_not_told_to_the_target(target: Path, tmp_path: Path):
    writer = RecordedWriter(lambda *_: "I cannot.")
    run(target, [write(tmp_path / "d.jsonl", TOOL)], tmp_path / "rows", writer)
    assert texts(tmp_path / "rows") == ["<|im_start|>user\nSum?<|im_end|>\n<|im_start|>assistant\nI cannot.<|im_end|>"]


def test_each_data_file_keeps_its_own_file_and_weight(target: Path, tmp_path: Path):
    one, two = (
        write(tmp_path / "one.jsonl", CHAT[:2]),
        write(tmp_path / "two.jsonl", [("user", "Yes?"), CHAT[1]]),
    )
    done = run(target, [f"{one}:3", two], tmp_path / "rows", RecordedWriter(lambda *_: "new"))

    assert [(s.name, s.num_records, s.weight, s.num_rows) for s in done.manifest.sources] == [
        ("1-one.jsonl", 1, 3.0, 3),
        ("2-two.jsonl", 1, 1.0, 1),
    ]


def test_another_weight_needs_no_new_answers_and_counts_at_once(target: Path, tmp_path: Path):
    data = write(tmp_path / "d.jsonl", CHAT[:2], [("user", "Yes?"), CHAT[1]])
    run(target, [data], tmp_path / "rows", RecordedWriter(lambda *_: "new"))
    writing = WritingConfig(regenerate=True, device="cpu")
    asked = RecordedWriter(lambda *_: "other")
    done = prepare(
        target, [f"{data}:3"], tmp_path / "rows", PrepareConfig(), Silent(),
        writing=writing, writer=asked.open, replace=True,
    )  # fmt: skip

    assert asked.answered == []
    assert [(s.weight, s.num_rows) for s in done.manifest.sources] == [(3.0, 6)]


def test_prompts_without_answers_will_do_and_each_is_answered(target: Path, tmp_path: Path):
    data = write(tmp_path / "d.jsonl", CHAT[:1], [CHAT[1]], [("narrator", "x")], [])
    with open(data, "a") as file:
        file.write(json.dumps({"turns": ["One?", "Two?"]}) + "\n")
    run(target, [data], tmp_path / "rows", RecordedWriter(lambda phase, _: f"new {phase[-1]}"))

    first, second = texts(tmp_path / "rows")
    assert first.endswith("user\nHi<|im_end|>\n<|im_start|>assistant\nnew 1<|im_end|>")
    assert "One?<|im_end|>\n<|im_start|>assistant\nnew 1<|im_end|>\n<|im_start|>user\nTwo?" in second
    document = json.loads((tmp_path / "rows.regenerated" / "written.json").read_text())
    assert document["dropped"] == {
        "no user turn": 1,
        "a role other than system, developer, user, assistant, tool": 1,
        "no messages": 1,
    }


def test_a_killed_regeneration_goes_on_and_ends_with_the_same_file(target: Path, tmp_path: Path):
    data = write(tmp_path / "d.jsonl", *[[("user", f"Q{i}"), CHAT[1], *CHAT[2:]] for i in range(5)])

    def written(name: str, dies_after: int | None) -> bytes:
        writer = RecordedWriter(lambda phase, prompt: f"{phase} {len(prompt)}", dies_after)
        run(target, [data], tmp_path / name, writer)
        return (tmp_path / f"{name}.regenerated" / "1-d.jsonl").read_bytes()

    whole = written("a", None)
    for dies_after in (2, 4):  # in the first turn, then in the second
        with pytest.raises(KeyboardInterrupt):
            written("b", dies_after)
    assert written("b", None) == whole


def test_thinking_is_kept_with_its_answer_and_rows_are_those_that_were_written(tmp_path: Path):
    thinking = save_target_with(tmp_path / "thinking", THINKING)
    writer = RecordedWriter(lambda *_: "<think>\nhm\n</think>\n\nYes.")
    run(thinking, [write(tmp_path / "d.jsonl", CHAT[:2])], tmp_path / "rows", writer)
    assert texts(tmp_path / "rows")[0].endswith("assistant\n<think>\nhm\n</think>\n\nYes.<|im_end|>")


def test_a_conversation_that_the_template_refuses_is_named_before_the_target_writes(tmp_path: Path):
    strict = (
        "{% if messages[2:] and messages[2].role == 'system' %}{{ raise_exception('too late') }}{% endif %}" + CHATML
    )
    folder = save_target_with(tmp_path / "strict", strict)
    late = [*CHAT[:2], ("system", "Be brief."), *CHAT[2:]]
    writer = RecordedWriter(lambda *_: "new")
    with pytest.raises(TemplateFailed, match="too late") as caught:
        run(folder, [write(tmp_path / "d.jsonl", late)], tmp_path / "rows", writer)
    assert caught.value.where == "data file 1, record 1"
    assert writer.asked == {}


def test_a_conversation_that_the_template_refuses_is_left_out_where_others_are_answered(tmp_path: Path):
    strict = "{% if messages[0].content == 'no' %}{{ raise_exception('not this') }}{% endif %}" + CHATML
    folder = save_target_with(tmp_path / "strict", strict)
    data = write(tmp_path / "d.jsonl", CHAT, [("user", "no"), ("assistant", "x")])
    done = run(folder, [data], tmp_path / "rows", RecordedWriter(lambda *_: "new"))
    assert done.manifest.num_rows == 1
    written = json.loads((tmp_path / "rows.regenerated" / "written.json").read_text())
    assert written["dropped"] == {"the chat template cannot render a conversation (TemplateError: not this)": 1}


def test_without_data_there_is_nothing_to_regenerate_and_a_dry_run_cannot_write(target: Path, tmp_path: Path):
    writer = RecordedWriter(lambda *_: "new")
    with pytest.raises(ConfigInvalid, match="--regenerate needs --data"):
        run(target, [], tmp_path / "rows", writer)
    with pytest.raises(ConfigInvalid, match="a dry run writes nothing"):
        prepare(target, [], tmp_path / "r", PrepareConfig(), Silent(), writing=WritingConfig(self_chat=1), dry_run=True)
