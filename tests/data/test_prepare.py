import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from byte_tokenizer import CHATML, THINKING, save_target_with
from eyas.contract.files.json_file import JsonInvalid
from eyas.data.prepare import ConfigInvalid, MaskUseless, PrepareConfig, prepare
from eyas.data.rows.row_store import Rows
from eyas.data.text.target_text import TemplateMissing, load_target_text
from eyas.models.chat_prompt import TokenizerUnloadable
from eyas.records.atomic import OutputExists
from eyas.records.data_files import DataMissing
from eyas.records.rows import HELD_OUT, MANIFEST, RULES, TENSORS, RowsUnreadable
from eyas.talk import Silent


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target_with(tmp_path_factory.mktemp("target"))


def record(*turns: str, **more) -> dict:
    roles = ["user", "assistant"] * len(turns)
    messages = [{"role": r, "content": c} for r, c in zip(roles, turns, strict=False)]
    return {"messages": messages, **more}


def write(path: Path, *records: dict) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def run(target: Path, data: Path, out: Path, **options):
    flags = {name: options.pop(name) for name in ("dry_run", "replace", "exclude") if name in options}
    return prepare(target, [data], out, PrepareConfig(**options), Silent(), **flags)


def supervised_text(target: Path, folder: Path) -> list[str]:
    tokenizer = load_target_text(target, {}).tokenizer
    rows = Rows(folder)
    return [tokenizer.decode([i for i, s in zip(r.token_ids, r.is_supervised, strict=True) if s]) for r in rows]


def test_a_row_supervises_every_answer_of_a_conversation_and_only_those(target: Path, tmp_path: Path):
    data = write(tmp_path / "d.jsonl", record("Hi", "Hello!", "Bye", "See you."), record("2+2?", "4", finished=False))
    run(target, data, tmp_path / "rows")

    assert supervised_text(target, tmp_path / "rows") == ["Hello!<|im_end|>See you.<|im_end|>", "4"]


def test_what_is_left_out_is_counted_by_reason(target: Path, tmp_path: Path):
    long, twice = record("Hi", "x" * 300), record("a", "b")
    data = write(tmp_path / "d.jsonl", twice, long, twice, record("only a question"), record("q", " "))
    done = run(target, data, tmp_path / "rows", max_length=128)

    assert done.manifest.num_rows == 1
    assert done.manifest.dropped == {
        "longer than 128 tokens": 1,
        "the same as an earlier row": 1,
        "no assistant turn": 1,
        "an empty assistant turn": 1,
    }
    assert done.manifest.sources[0].num_records == 5


def test_excluded_prompts_are_left_out_counted_and_part_of_the_fingerprint(target: Path, tmp_path: Path):
    prompt = "one two three four five six seven eight nine"
    data = write(tmp_path / "d.jsonl", record(f"Say {prompt}", "No"), record("Hi", "Yo"))
    bench = write(tmp_path / "bench.jsonl", {"turns": [prompt]})
    done = run(target, data, tmp_path / "rows", exclude=[bench])

    assert supervised_text(target, tmp_path / "rows") == ["Yo<|im_end|>"]
    assert done.manifest.dropped == {"shares 8 words in a row with an excluded prompt": 1}
    assert run(target, data, tmp_path / "all", dry_run=True).manifest.fingerprint != done.manifest.fingerprint


def test_a_file_to_exclude_that_is_not_there_is_named_by_its_own_option(target: Path, tmp_path: Path):
    data = write(tmp_path / "d.jsonl", record("Hi", "Yo"))
    with pytest.raises(DataMissing, match="--exclude"):
        run(target, data, tmp_path / "rows", exclude=[tmp_path / "none.jsonl"])


def test_cutting_keeps_the_beginning_of_a_long_row(target: Path, tmp_path: Path):
    data = write(tmp_path / "d.jsonl", record("Hi", "x" * 300))
    done = run(target, data, tmp_path / "rows", max_length=128, too_long="cut")

    assert (done.manifest.num_rows, done.manifest.longest) == (1, 128)
    assert done.manifest.dropped == {"cut at 128 tokens (kept)": 1}
    data = write(tmp_path / "e.jsonl", record("Hi", "Yo"), record("x" * 300, "too far behind"))
    done = run(target, data, tmp_path / "e", max_length=128, too_long="cut")
    assert done.manifest.dropped == {"nothing supervised": 1}


def test_the_example_shows_the_supervised_text_between_the_rest(target: Path, tmp_path: Path):
    done = run(target, write(tmp_path / "d.jsonl", record("Hi", "Yo")), tmp_path / "rows")
    assert done.example == (
        ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", False),
        ("Yo<|im_end|>", True),
    )


def test_running_again_says_that_the_rows_are_there_and_writes_nothing(target: Path, tmp_path: Path):
    data = write(tmp_path / "d.jsonl", record("Hi", "Yo"))
    first = run(target, data, tmp_path / "rows")
    before = (tmp_path / "rows" / "rows.safetensors").stat().st_mtime_ns
    again = run(target, data, tmp_path / "rows")

    assert not first.was_there
    assert again.was_there
    assert again.manifest == first.manifest
    assert (tmp_path / "rows" / "rows.safetensors").stat().st_mtime_ns == before


def test_rows_that_are_no_longer_what_their_manifest_says_are_not_there(target: Path, tmp_path: Path):
    data = write(tmp_path / "d.jsonl", *(record(f"Hi {i}", f"Yo {i}") for i in range(3)))
    run(target, data, tmp_path / "rows", held_out=1)
    for path in (tmp_path / "rows" / TENSORS, tmp_path / "rows" / HELD_OUT):
        whole = path.read_bytes()
        for damage in (None, os.mkfifo, os.mkdir, b"", whole[:-3]):
            path.unlink()
            if isinstance(damage, bytes):
                path.write_bytes(damage)
            elif damage is not None:
                damage(path)
            with pytest.raises(RowsUnreadable) as caught:
                run(target, data, tmp_path / "rows", held_out=1)
            assert caught.value.where == str(path)
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
            path.write_bytes(whole)
    assert run(target, data, tmp_path / "rows", held_out=1).was_there


@pytest.mark.parametrize(
    "flip",
    [
        lambda ids, mask, starts: (np.where(ids == ids[3], ids[4], ids), mask, starts),
        lambda ids, mask, starts: (ids[::-1].copy(), mask, starts),
        lambda ids, mask, starts: (ids, np.roll(mask, 1), starts),
        lambda ids, mask, starts: (ids, mask[::-1].copy(), starts),
    ],
)
def test_flipped_ids_and_swapped_mask_bytes_are_damage_also_when_prepare_runs_again(target: Path, tmp_path: Path, flip):
    data = write(tmp_path / "d.jsonl", record("Hi there", "Yo"), record("Bye", "See you"))
    run(target, data, tmp_path / "rows")
    names, path = ("token_ids", "is_supervised", "row_starts"), tmp_path / "rows" / TENSORS
    tensors = load_file(path)
    save_file(tensors | dict(zip(names, flip(*(tensors[name] for name in names)), strict=True)), path)

    with pytest.raises(RowsUnreadable, match="content"):
        Rows(tmp_path / "rows")
    with pytest.raises(RowsUnreadable, match="content"):
        run(target, data, tmp_path / "rows")


def test_other_data_options_or_template_are_other_rows_and_never_mixed(target: Path, tmp_path: Path):
    data = write(tmp_path / "d.jsonl", record("Hi", "Yo"))
    fingerprint = run(target, data, tmp_path / "rows", template_options='{"a": 1}').manifest.fingerprint
    other_target = save_target_with(tmp_path / "other", CHATML.replace("im_start|>'", "im_start|> '"))

    same = {"template_options": '{"a":1}'}
    assert run(target, data, tmp_path / "rows", **same).was_there
    with pytest.raises(OutputExists, match="why: max_length: 2048 then, 64 now\n"):
        run(target, data, tmp_path / "rows", max_length=64, **same)
    with pytest.raises(OutputExists, match="a: 1 then, 2 now"):
        run(target, data, tmp_path / "rows", template_options='{"a": 2}')
    with pytest.raises(OutputExists, match="why: template: '"):
        run(other_target, data, tmp_path / "rows", **same)
    with pytest.raises(OutputExists, match="--exclude"):
        run(target, data, tmp_path / "rows", exclude=[write(tmp_path / "e.jsonl", {"prompt": "x"})], **same)
    write(data, record("Hi", "Yo!"))
    with pytest.raises(OutputExists, match=r"why: data: \[\['d.jsonl', '"):
        run(target, data, tmp_path / "rows", **same)
    replaced = run(target, data, tmp_path / "rows", replace=True, **same)
    assert replaced.manifest.fingerprint != fingerprint
    assert supervised_text(target, tmp_path / "rows") == ["Yo!<|im_end|>"]


def test_a_name_that_is_no_text_is_written_and_read_back(target: Path, tmp_path: Path):
    data = write(tmp_path / "d\udcff.jsonl", record("Hi", "Yo"))
    made = run(target, data, tmp_path / "rows").manifest
    assert run(target, data, tmp_path / "rows").manifest == made


def test_a_dry_run_counts_and_writes_nothing(target: Path, tmp_path: Path):
    done = run(target, write(tmp_path / "d.jsonl", record("Hi", "Yo")), tmp_path / "rows", dry_run=True)
    assert done.manifest.num_rows == 1
    assert not (tmp_path / "rows").exists()


def test_an_error_in_the_middle_leaves_no_rows(target: Path, tmp_path: Path):
    data = write(tmp_path / "d.jsonl", record("Hi", "Yo"))
    data.write_text(data.read_text() + "{broken\n")
    with pytest.raises(Exception, match="is not a conversation"):
        run(target, data, tmp_path / "rows")
    assert [p.name for p in tmp_path.iterdir()] == ["d.jsonl"]


def test_a_mask_of_nothing_is_refused(target: Path, tmp_path: Path):
    with pytest.raises(MaskUseless, match="no conversation of the data gives a row") as caught:
        run(target, write(tmp_path / "d.jsonl", record("only a question")), tmp_path / "rows")
    assert caught.value.why == f"every record was left out: 1 × no assistant turn (first: {tmp_path / 'd.jsonl'}:1)"
    assert caught.value.where == str(tmp_path / "d.jsonl")


def test_a_form_without_answers_and_an_unknown_role_are_named_with_the_first_record(target: Path, tmp_path: Path):
    messages = [{"role": "narrator", "content": "x"}, {"role": "assistant", "content": "y"}]
    data = write(tmp_path / "d.jsonl", record("Hi", "Yo"), {"prompt": "a", "response": "b"}, {"messages": messages})
    done = run(target, data, tmp_path / "rows", dry_run=True)

    assert list(done.first.values()) == [f"{data}:2", f"{data}:3, role 'narrator'"]
    assert next(iter(done.first)).startswith("read as a prompt only")
    assert done.first.keys() == done.manifest.dropped.keys()


def test_an_empty_file_is_said_to_be_empty(target: Path, tmp_path: Path):
    with pytest.raises(MaskUseless) as caught:
        run(target, write(tmp_path / "d.jsonl"), tmp_path / "rows")
    assert caught.value.why == "the files hold no records"


@pytest.mark.parametrize("damage", ["gone", "broken"])
def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path, damage: str):
    bare = save_target_with(tmp_path / "bare")
    for path in bare.glob("*token*"):
        path.unlink()
    if damage == "broken":
        (bare / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerUnloadable, match="cannot load a tokenizer from"):
        load_target_text(bare, {})


def test_a_broken_generation_config_is_named_and_odd_end_tokens_are_passed_over(tmp_path: Path):
    folder = save_target_with(tmp_path / "target")
    (folder / "generation_config.json").write_text('{"eos_token_id": ["x", null, -1, 999999, true]}')
    load_target_text(folder, {})
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(JsonInvalid):
        load_target_text(folder, {})


@pytest.mark.parametrize("options", ["[" * 200_000, "[1]", "x"])
def test_template_options_that_are_no_object_are_refused(options: str):
    with pytest.raises(ConfigInvalid, match="is not a JSON object"):
        PrepareConfig(template_options=options)


def test_a_mask_of_everything_is_refused(tmp_path: Path):
    answers_only = "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}{% endif %}{% endfor %}"
    bare = save_target_with(tmp_path / "bare", answers_only)
    with pytest.raises(MaskUseless, match="2 of 2 tokens are supervised"):
        run(bare, write(tmp_path / "d.jsonl", record("Hi", "Yo")), tmp_path / "rows")


def test_split_turns_serve_templates_that_rewrite_earlier_turns(tmp_path: Path):
    thinking = save_target_with(tmp_path / "thinking", THINKING)
    data = write(tmp_path / "d.jsonl", record("Hi", "Hello!", "Bye", "See you."))
    talk = Silent()
    prepare(thinking, [data], tmp_path / "rows", PrepareConfig(turns="split"), talk)
    empty = "<think>\n\n</think>\n\n"
    assert supervised_text(thinking, tmp_path / "rows") == [f"{empty}Hello!<|im_end|>", f"{empty}See you.<|im_end|>"]
    (note,) = (note for note in talk.notes if "between the prompt" in note)
    assert f"{empty!r} between the prompt and 2 answers without reasoning" in note


def test_rows_say_by_which_rules_they_were_made(target: Path, tmp_path: Path):
    run(target, write(tmp_path / "d.jsonl", record("Hi", "Yo")), tmp_path / "rows")
    assert json.loads((tmp_path / "rows" / MANIFEST).read_text())["rules"] == RULES == 7


def test_a_target_without_template_is_refused(tmp_path: Path):
    bare = save_target_with(tmp_path / "bare", None)
    with pytest.raises(TemplateMissing):
        run(bare, write(tmp_path / "d.jsonl", record("Hi", "Yo")), tmp_path / "rows")


def test_all_bad_options_are_told_at_once():
    with pytest.raises(ConfigInvalid) as caught:
        PrepareConfig(max_length=3, template_options="[]")
    assert "max_length = 3" in caught.value.why
    assert "template_options" in caught.value.why
