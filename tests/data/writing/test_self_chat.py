"""The target writes both sides; what it wrote is kept, token for token, and a killed run goes on."""

import contextlib
import json
from datetime import date
from pathlib import Path

import pytest

from byte_tokenizer import CHATML, THINKING, save_target_with
from eyas.data.prepare import PrepareConfig, Prepared, prepare
from eyas.data.prepare_config import ConfigInvalid, WritingConfig
from eyas.data.rows.row_store import Rows
from eyas.data.text.target_text import UserSlotUnclear, load_target_text
from eyas.data.writing.written_data import NothingWritten, WrittenDamaged
from eyas.records.atomic import OutputExists
from eyas.talk import Silent
from recorded_writer import END, TOKENIZER, RecordedWriter

USERS = [
    "What is a hawk?",
    "Tell me of rain please",
    "What is a HAWK?",
    "Hi",
    "",
    "a <|pad|> is what",
    "It goes on and…",
]


class Numbered:
    """Texts for each call in turn, by the first part of the phase's name."""

    def __init__(self, **texts: list[str]) -> None:
        self._texts, self._next = texts, dict.fromkeys(texts, 0)

    def __call__(self, phase: str, prompt: str) -> str:
        kind = phase.split("-")[0]
        self._next[kind] += 1
        return self._texts[kind][(self._next[kind] - 1) % len(self._texts[kind])]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target_with(tmp_path_factory.mktemp("target"))


def run(target: Path, out: Path, writer: RecordedWriter, *, exclude: list[Path] | None = None, **options) -> Prepared:
    flags = {name: options.pop(name) for name in ("turns", "held_out", "replace") if name in options}
    replace = flags.pop("replace", False)
    return prepare(
        target,
        [],
        out,
        PrepareConfig(**flags),
        Silent(),
        writing=WritingConfig(device="cpu", **options),
        writer=writer.open,
        exclude=exclude or [],
        replace=replace,
    )


def records(out: Path) -> list[dict]:
    folder = out.with_name(f"{out.name}.self-chat")
    return [json.loads(line) for line in (folder / "conversations.jsonl").read_text().splitlines()]


def test_user_turns_begin_where_the_template_lets_the_user_speak_and_bad_ones_are_dropped_by_reason(target, tmp_path):
    writer = RecordedWriter(Numbered(user=USERS, answer=["A bird.", "It falls…"]))
    run(target, tmp_path / "rows", writer, self_chat=7)

    assert {TOKENIZER.decode(r.prompt_ids) for r in writer.asked["user-1"]} == {"<|im_start|>user\n"}
    assert all(END in r.stop_ids and r.sampling.temperature == 1.0 for r in writer.asked["user-1"])
    assert len({r.sampling.seed for r in writer.asked["user-1"]}) == 7
    document = json.loads((tmp_path / "rows.self-chat" / "written.json").read_text())
    assert document["dropped"] == {
        "a user turn like an earlier one": 1,
        "a user turn under 3 words": 1,
        "an empty user turn": 1,
        "a user turn with a special token in it": 1,
        "a user turn that did not end within 192 tokens": 1,
    }  # and 什么是鹰 is more than one word
    assert document["counts"] == {"conversations": 2, "answers": 2, "answer_tokens": 8 + 8, "unfinished": 1}


def test_answers_are_greedy_or_sampled_in_turn_and_unfinished_ones_are_kept_and_marked(target, tmp_path):
    writer = RecordedWriter(Numbered(user=USERS[:2], answer=["A bird.", "It falls…"]))
    run(target, tmp_path / "rows", writer, self_chat=2, answer_temperature=(0.0, 0.7))

    assert [r.sampling.temperature for r in writer.asked["answer-1"]] == [0.0, 0.7]
    assert TOKENIZER.decode(writer.asked["answer-1"][0].prompt_ids) == (
        "<|im_start|>user\nWhat is a hawk?<|im_end|>\n<|im_start|>assistant\n"
    )
    first, second = records(tmp_path / "rows")
    assert (first["messages"][1]["content"], first["finished"], first["temperature"]) == ("A bird.", True, 0.0)
    assert (second["messages"][1]["content"], second["finished"], second["temperature"]) == ("It falls", False, 0.7)


def test_rows_hold_the_ids_that_the_target_wrote_even_where_its_text_would_be_tokenised_otherwise(tmp_path):
    # A tokenizer that would merge what the target wrote as two tokens.
    from tokenizers import AddedToken

    folder = save_target_with(tmp_path / "target")
    text = load_target_text(folder, {})
    text.tokenizer.add_tokens([AddedToken("bird", special=False)])
    text.tokenizer.save_pretrained(folder)
    run(folder, tmp_path / "rows", RecordedWriter(Numbered(user=USERS[:2], answer=["A bird.", "Rain."])), self_chat=2)

    rows = Rows(tmp_path / "rows")
    written = [i for i, s in zip(rows[0].token_ids, rows[0].is_supervised, strict=True) if s]
    assert written == [*TOKENIZER("A bird.")["input_ids"], END]
    assert load_target_text(folder, {}).tokenizer("A bird.")["input_ids"] != written[:-1]
    assert rows.manifest.num_as_written == 2

    plain = prepare(folder, [tmp_path / "rows.self-chat"], tmp_path / "again", PrepareConfig(), Silent())
    assert plain.manifest.num_as_written == 2, "the saved conversations are data like any other"
    assert list(Rows(tmp_path / "again")) == list(rows)


def test_text_that_was_edited_is_tokenised_and_said(target, tmp_path):
    run(target, tmp_path / "rows", RecordedWriter(Numbered(user=USERS[:2], answer=["A bird.", "Rain."])), self_chat=2)
    data = tmp_path / "rows.self-chat" / "conversations.jsonl"
    data.write_text(data.read_text().replace('"content":"A bird."', '"content":"A fish."'))
    talk = Silent()
    prepare(target, [data], tmp_path / "edited", PrepareConfig(), talk)

    assert talk.notes == ["1 records were edited since the target wrote them: their text was tokenised"]
    row = Rows(tmp_path / "edited")[0]
    assert (
        TOKENIZER.decode([i for i, s in zip(row.token_ids, row.is_supervised, strict=True) if s]) == "A fish.<|im_end|>"
    )


def test_a_question_that_was_edited_is_tokenised_too(target, tmp_path):
    run(target, tmp_path / "rows", RecordedWriter(Numbered(user=USERS[:2], answer=["A bird.", "Rain."])), self_chat=2)
    first, second = records(tmp_path / "rows")
    first["messages"][0]["content"] = "Which fish is it?"
    data = tmp_path / "d.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in (first, second)))
    done = prepare(target, [data], tmp_path / "edited", PrepareConfig(), Silent())

    assert (done.manifest.num_rows, done.manifest.num_as_written) == (2, 1)
    assert "Which fish is it?" in TOKENIZER.decode(Rows(tmp_path / "edited")[0].token_ids)


@pytest.mark.parametrize("edit", ["shortened", "turn removed"])
def test_an_edit_that_only_takes_away_is_noticed(target, tmp_path, edit):
    writer = RecordedWriter(Numbered(user=[USERS[0], "And a third thing"], answer=["A bird.", "Yes."]))
    run(target, tmp_path / "rows", writer, self_chat=1, chat_turns=2)
    (record,) = records(tmp_path / "rows")
    if edit == "shortened":
        record["messages"][3]["content"] = "Y"
    else:
        del record["messages"][2:]
    data = tmp_path / "d.jsonl"
    data.write_text(json.dumps(record))
    done = prepare(target, [data], tmp_path / "edited", PrepareConfig(), Silent())

    assert done.manifest.num_as_written == 0
    text = TOKENIZER.decode(Rows(tmp_path / "edited")[0].token_ids)
    assert text.endswith("assistant\nY<|im_end|>" if edit == "shortened" else "A bird.<|im_end|>")


def test_ids_without_a_checksum_of_their_text_are_held_against_it(target, tmp_path):
    run(target, tmp_path / "rows", RecordedWriter(Numbered(user=USERS[:2], answer=["A bird.", "Rain."])), self_chat=2)
    lines = [{**r, "written_text": None} for r in records(tmp_path / "rows")]
    lines[1]["messages"][1]["content"] = "Snow."
    data = tmp_path / "d.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = prepare(target, [data], tmp_path / "again", PrepareConfig(), Silent())
    assert (done.manifest.num_rows, done.manifest.num_as_written) == (2, 1)


def test_another_reader_tokenises_the_text(target, tmp_path):
    run(target, tmp_path / "rows", RecordedWriter(Numbered(user=USERS[:2], answer=["A bird.", "Rain."])), self_chat=2)
    other = save_target_with(tmp_path / "other", "Chat:" + CHATML)
    done = prepare(other, [tmp_path / "rows.self-chat"], tmp_path / "again", PrepareConfig(), Silent())
    assert (done.manifest.num_rows, done.manifest.num_as_written) == (2, 0)


@pytest.mark.parametrize("dies_after", [0, 3, 8, 10])
def test_a_run_that_is_killed_goes_on_and_ends_with_the_same_file(target, tmp_path, dies_after):
    def written(out: Path, *deaths: int) -> tuple[bytes, int]:
        answered = 0
        for death in [*deaths, None]:
            writer = RecordedWriter(lambda p, q: f"{p} {q[-9:]} says so"[:40], death)
            try:
                run(target, out, writer, self_chat=6, min_user_words=1, user_temperature=0.0)
            except KeyboardInterrupt:
                assert death is not None
            answered += len(writer.answered)
        return (out.with_name(f"{out.name}.self-chat") / "conversations.jsonl").read_bytes(), answered

    whole, resumed = written(tmp_path / "a"), written(tmp_path / "b", dies_after)

    assert resumed == whole, "nothing is asked twice and nothing is lost"
    assert not list((tmp_path / "b.self-chat").glob("*.completions"))


def test_a_template_that_writes_the_date_keeps_the_day_on_which_the_run_began(tmp_path):
    dated = save_target_with(tmp_path / "dated", "{{ strftime_now('%d %b %Y') }}" + CHATML)
    out, writing = tmp_path / "rows", WritingConfig(device="cpu", self_chat=2)
    for day, dies_after in ((30, 3), (31, None)):
        writer = RecordedWriter(Numbered(user=USERS[:2], answer=["A bird."]), dies_after)
        talk = Silent()
        with pytest.raises(KeyboardInterrupt) if dies_after else contextlib.nullcontext():
            prepare(
                dated, [], out, PrepareConfig(), talk, writing=writing, writer=writer.open, today=date(2026, 10, day)
            )
    assert writer.answered == ["self-1"]
    assert all(TOKENIZER.decode(row.token_ids).startswith("30 Oct 2026<") for row in Rows(out))

    data = tmp_path / "d.jsonl"
    data.write_text(json.dumps({"messages": records(out)[0]["messages"]}))
    prepare(dated, [data], tmp_path / "text", PrepareConfig(), talk, today=date(2026, 10, 31))
    assert TOKENIZER.decode(Rows(tmp_path / "text")[0].token_ids).startswith("31 Oct 2026<")
    assert "rows made of text say 2026-10-31" in talk.notes[0]


def test_a_finished_self_chat_is_not_written_again_and_other_options_are_refused(target, tmp_path):
    first = RecordedWriter(Numbered(user=USERS[:2], answer=["A bird."]))
    run(target, tmp_path / "rows", first, self_chat=2)
    second = RecordedWriter(Numbered(user=USERS[:2], answer=["A bird."]))
    assert run(target, tmp_path / "rows", second, self_chat=2).was_there
    assert second.asked == {}

    with pytest.raises(OutputExists, match="holds other data") as caught:
        run(target, tmp_path / "rows", second, self_chat=2, seed=1)
    assert caught.value.why == "seed: 0 then, 1 now"
    run(target, tmp_path / "rows", second, self_chat=2, seed=1, replace=True)
    assert set(second.asked) == {"user-1", "answer-1"}


def test_an_unfinished_run_goes_on_under_replace_too_and_is_not_mixed_with_another(target, tmp_path):
    def killed(**options) -> list[str]:
        writer = RecordedWriter(Numbered(user=USERS[:2], answer=["A bird."]), dies_after=2)
        with pytest.raises(KeyboardInterrupt):
            run(target, tmp_path / "rows", writer, self_chat=3, min_user_words=1, **options)
        return writer.answered

    assert killed() == ["self-0", "self-1"]
    with pytest.raises(OutputExists, match="unfinished run of another job") as caught:
        run(target, tmp_path / "rows", RecordedWriter(lambda *_: "x"), self_chat=4, min_user_words=1)
    assert caught.value.why == "self_chat: 3 then, 4 now"
    assert killed(replace=True)[0] == "self-2"
    assert killed(seed=1, replace=True) == ["self-0", "self-1"]
    for path in (tmp_path / "rows.self-chat").glob("*.completions"):
        path.unlink()
    assert killed(seed=2) == ["self-0", "self-1"], "a run that has written nothing is in nobody's way"


def test_a_place_that_cannot_be_written_is_told_before_the_target_writes(target, tmp_path):
    writer = RecordedWriter(lambda *_: "What is a hawk?")
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "thesis.txt").touch()
    for replace in (False, True):
        with pytest.raises(OutputExists):
            run(target, tmp_path / "rows", writer, self_chat=1, replace=replace)
    run(target, tmp_path / "good", writer, self_chat=1)
    asked = dict(writer.asked)
    with pytest.raises(OutputExists, match="turns: 'joint' then, 'split' now"):
        run(target, tmp_path / "good", writer, self_chat=1, turns="split")
    assert writer.asked == asked


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "eyas.written/9"},
        {"weights": []},
        {"weights": {}},
        {"weights": {"conversations.jsonl": "2"}},
        {"weights": {"conversations.jsonl": -2}},
        {"weights": {"conversations.jsonl": float("nan")}},
        {"weights": {"../rows.jsonl": 1.0}},
        {"weights": {"other.jsonl": 1.0}},
        {"counts": 7},
        {"counts": {}},
        {"dropped": {"x": {}}},
        "{",
        "[]",
        '{"a":' * 20_000,
        "conversations.jsonl",
    ],
)
def test_a_damaged_self_chat_is_refused_and_written_anew_on_demand(target, tmp_path, change):
    run(target, tmp_path / "rows", RecordedWriter(Numbered(user=USERS[:2], answer=["A bird."])), self_chat=2)
    path = tmp_path / "rows.self-chat" / "written.json"
    if change == "conversations.jsonl":
        path.with_name(change).unlink()
    elif isinstance(change, str):
        path.write_text(change)
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | change))

    writer = RecordedWriter(Numbered(user=USERS[:2], answer=["A bird."]))
    with pytest.raises(WrittenDamaged, match="--replace"):
        run(target, tmp_path / "rows", writer, self_chat=2)
    run(target, tmp_path / "rows", writer, self_chat=2, replace=True)
    assert run(target, tmp_path / "rows", writer, self_chat=2).was_there


def test_a_self_chat_that_kept_nothing_says_why_and_is_in_nobodys_way(target, tmp_path):
    writer = RecordedWriter(Numbered(user=["It goes on and…"]))
    for _ in range(2):
        with pytest.raises(NothingWritten, match="above 64") as caught:
            run(target, tmp_path / "rows", writer, self_chat=2, max_user_tokens=64)
        assert caught.value.why.endswith("left out: 2 × a user turn that did not end within 64 tokens")
    assert len(writer.asked["user-1"]) == 2
    run(target, tmp_path / "rows", RecordedWriter(Numbered(user=USERS[:2], answer=["A bird."])), self_chat=2)
    assert len(records(tmp_path / "rows")) == 2


def test_turns_end_when_no_conversation_is_left(target, tmp_path):
    writer = RecordedWriter(Numbered(user=USERS[:2], answer=["It never ends…"]))
    run(target, tmp_path / "rows", writer, self_chat=2, chat_turns=10**12)
    assert set(writer.asked) == {"user-1", "answer-1"}


def test_further_turns_go_on_the_ids_that_were_written(target, tmp_path):
    writer = RecordedWriter(Numbered(user=[*USERS[:2], "And a third thing"], answer=["A bird.", "Rain…", "Yes."]))
    run(target, tmp_path / "rows", writer, self_chat=2, chat_turns=2)

    assert [TOKENIZER.decode(r.prompt_ids) for r in writer.asked["user-2"]] == [
        "<|im_start|>user\nWhat is a hawk?<|im_end|>\n<|im_start|>assistant\nA bird.<|im_end|>\n<|im_start|>user\n"
    ], "an answer that was cut off ends its conversation"
    both, cut = Rows(tmp_path / "rows")
    assert TOKENIZER.decode(both.token_ids).endswith(
        "user\nAnd a third thing<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>"
    )
    assert TOKENIZER.decode([i for i, s in zip(both.token_ids, both.is_supervised, strict=True) if s]) == (
        "A bird.<|im_end|>Yes.<|im_end|>"
    )
    assert TOKENIZER.decode([i for i, s in zip(cut.token_ids, cut.is_supervised, strict=True) if s]) == "Rain"

    split = prepare(target, [tmp_path / "rows.self-chat"], tmp_path / "s", PrepareConfig(turns="split"), Silent())
    assert split.manifest.num_rows == 3


def test_where_a_template_trims_answers_the_next_turn_reads_what_a_server_would_show(tmp_path):
    trims = save_target_with(tmp_path / "trims", CHATML.replace("m.content", "(m.content | trim)"))
    writer = RecordedWriter(Numbered(user=["What is a hawk?", "And a third thing"], answer=[" A bird. \n", "Yes."]))
    run(trims, tmp_path / "rows", writer, self_chat=1, chat_turns=2)

    first, second = (TOKENIZER.decode(row.token_ids) for row in Rows(tmp_path / "rows"))
    assert first.endswith("assistant\n A bird. \n<|im_end|>"), "as it was written"
    assert "assistant\nA bird.<|im_end|>\n" in second
    assert second.endswith("assistant\nYes.<|im_end|>")


def test_a_template_that_rewrites_earlier_turns_gets_a_row_of_its_own_for_each_turn(tmp_path):
    thinking = save_target_with(tmp_path / "thinking", THINKING)
    writer = RecordedWriter(Numbered(user=["What is a hawk?", "And a third thing"], answer=["A bird.", "Yes."]))
    run(thinking, tmp_path / "rows", writer, self_chat=1, chat_turns=2)

    first, second = (TOKENIZER.decode(row.token_ids) for row in Rows(tmp_path / "rows"))
    assert first == "<|im_start|>user\nWhat is a hawk?<|im_end|>\n<|im_start|>assistant\nA bird.<|im_end|>"
    assert second.startswith("<|im_start|>user\nWhat is a hawk?<|im_end|>\n<|im_start|>assistant\nA bird.<|im_end|>\n")
    assert second.endswith("Yes.<|im_end|>")


def test_system_prompts_are_taken_in_turn_and_precede_the_users_words(target, tmp_path):
    writer = RecordedWriter(Numbered(user=[*USERS[:2], "And a third thing"], answer=["A bird."]))
    run(target, tmp_path / "rows", writer, self_chat=3, system=("Be brief.", "Be kind."))

    assert [TOKENIZER.decode(r.prompt_ids) for r in writer.asked["user-1"]] == [
        f"<|im_start|>system\nBe {how}.<|im_end|>\n<|im_start|>user\n" for how in ("brief", "kind", "brief")
    ]
    assert [r["messages"][0]["content"] for r in records(tmp_path / "rows")] == ["Be brief.", "Be kind.", "Be brief."]


def test_a_template_without_a_closing_token_ends_the_users_turn_by_its_text(tmp_path):
    inst = (
        "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
        "{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    )
    folder = save_target_with(tmp_path / "target", inst)
    writer = RecordedWriter(Numbered(user=["What is a hawk? [/INST]x"], answer=["A bird."]))
    run(folder, tmp_path / "rows", writer, self_chat=1)

    assert writer.asked["user-1"][0].stop_strings == ("[/INST]",)
    assert records(tmp_path / "rows")[0]["messages"][0]["content"] == "What is a hawk?"


def test_a_template_that_hides_the_users_words_is_refused(tmp_path):
    folder = save_target_with(tmp_path / "target", "{% for m in messages %}{{ m.role }}<|im_end|>{% endfor %}")
    with pytest.raises(UserSlotUnclear, match="0 times"):
        run(folder, tmp_path / "rows", RecordedWriter(Numbered(user=["x"])), self_chat=1)


def test_benchmark_prompts_that_the_target_knows_by_heart_are_left_out_before_they_are_answered(target, tmp_path):
    bench = tmp_path / "bench.jsonl"
    bench.write_text(json.dumps({"turns": ["one two three four five six seven eight nine"]}))
    texts = Numbered(user=["Say one two three four five six seven eight", USERS[0]], answer=["A bird."])
    writer = RecordedWriter(texts)
    run(target, tmp_path / "rows", writer, self_chat=2, exclude=[bench])
    assert [r.id for r in writer.asked["answer-1"]] == ["self-1"]


def test_a_prompt_with_no_room_for_an_answer_is_left_out(target, tmp_path):
    writer = RecordedWriter(Numbered(user=[USERS[0], "long words " * 200], answer=["A bird."]))
    run(target, tmp_path / "rows", writer, self_chat=2, max_user_tokens=3000)
    dropped = json.loads((tmp_path / "rows.self-chat" / "written.json").read_text())["dropped"]
    assert dropped == {"a prompt with no room for an answer within 2048 tokens": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"self_chat": -1},
        {"self_chat": 1, "regenerate": True},
        {"answer_temperature": ()},
        {"answer_temperature": (-1.0,)},
        {"answer_temperature": (float("inf"),)},
        {"user_temperature": float("nan")},
        {"system": ("fine", "\udcff")},
        {"user_top_p": 0.0},
        {"chat_turns": 0},
        {"max_batch": 0},
        {"max_cache_mib": 0},
        {"answer_temperature": (0.0, 1e-7)},
    ],
)
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigInvalid):
        WritingConfig(**wrong)
