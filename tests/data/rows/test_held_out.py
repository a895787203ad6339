import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from byte_tokenizer import save_target_with
from eyas.data.prepare import PrepareConfig, Prepared, prepare
from eyas.data.prepare_config import ConfigInvalid
from eyas.data.rows.row_store import Rows
from eyas.data.rows.selection import choose_held_out, default_held_out, eval_row
from eyas.data.text.tokenise import TokenRow
from eyas.records.eval_rows import EvalRow, read_eval_rows
from eyas.talk import Silent


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target_with(tmp_path_factory.mktemp("target"))


def record(question: str, answer: str, **more) -> dict:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}], **more}


def run(target: Path, folder: Path, records: list[dict], num: int | None, talk: Silent | None = None) -> Prepared:
    data = folder / "d.jsonl"
    data.write_text("".join(json.dumps(r) + "\n" for r in records))
    return prepare(target, [data], folder / "rows", PrepareConfig(held_out=num), talk or Silent())


def test_held_out_rows_stand_apart_and_no_trained_row_has_their_prompts(target: Path, tmp_path: Path):
    records = [record(f"Question {i % 20}?", f"Answer {i}.", temperature=0) for i in range(40)]
    done = run(target, tmp_path, records, 4)

    held = read_eval_rows([tmp_path / "rows" / "held_out.jsonl"])
    trained = list(Rows(tmp_path / "rows"))
    assert (len(held), done.manifest.num_held_out, len(trained)) == (4, 4, 32)
    assert done.manifest.dropped == {"shares its prompt with a held-out row": 4}
    prompts = {row.token_ids[: row.is_supervised.index(True)] for row in trained}
    for row in held:
        assert isinstance(row, EvalRow)
        assert row.prompt_ids not in prompts
    assert done.manifest.notes == ()


def test_greedy_answers_are_held_out_first_and_others_are_named(target: Path, tmp_path: Path):
    records = [record(f"Q{i}", f"Answer {i}.", temperature=0 if i % 5 == 0 else 0.7) for i in range(20)]
    talk = Silent()
    run(target, tmp_path, records, 6, talk)

    ids = [row.id for row in read_eval_rows([tmp_path / "rows" / "held_out.jsonl"])]
    assert {f"d.jsonl:{line}" for line in (1, 6, 11, 16)} < set(ids)
    assert talk.notes == ["2 of 6 held-out rows are not known to be the target's greedy answers"]


def test_the_choice_does_not_depend_on_the_order_of_the_rows():
    keys = np.array([5, 3, 9, 1, 7, 8])
    greedy = np.ones(6, dtype=bool)
    back = choose_held_out(keys[::-1].copy(), greedy, 2)
    assert {int(keys[::-1][i]) for i in back.rows} == {int(keys[i]) for i in choose_held_out(keys, greedy, 2).rows}


def test_more_than_half_of_the_prompts_cannot_be_held_out(target: Path, tmp_path: Path):
    with pytest.raises(ConfigInvalid, match="3 rows cannot be held out"):
        run(target, tmp_path, [record(f"Q{i}", "A.") for i in range(5)], 3)


def test_an_evaluation_row_is_the_first_answer_and_what_precedes_it():
    row = TokenRow((1, 2, 3, 4, 5, 6), (False, False, True, True, False, True))
    assert eval_row(row, "x") == EvalRow(id="x", set="held-out", prompt_ids=(1, 2), response_ids=(3, 4))


class Listening(Silent):
    """Keeps the lines, too."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


def test_without_a_wish_a_part_of_many_prompts_is_held_out_and_none_of_few(target: Path, tmp_path: Path):
    assert [default_held_out(n) for n in (0, 99, 100, 250, 1600, 10**6)] == [0, 0, 4, 10, 64, 64]
    talk = Listening()
    done = run(target, tmp_path, [record(f"Q{i}", f"Answer {i}.") for i in range(120)], None, talk)
    assert (done.manifest.num_held_out, done.manifest.num_rows) == (4, 116)
    assert "held out, so that training can keep its best draft: 4 of 120 prompts (--held-out changes it)" in talk.lines
    assert any(line.startswith("prompts of ") for line in talk.lines)
    assert any("prompts of 512 tokens or more, conversations of several turns, code" in note for note in talk.notes)


def test_rows_held_out_of_several_files_are_counted_by_file(target: Path, tmp_path: Path):
    paths = [tmp_path / "sums.jsonl", tmp_path / "chat.jsonl.gz"]
    for path in paths:
        with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
            file.writelines(json.dumps(record(f"{path.name} {i}", "Yes.")) + "\n" for i in range(8))
    prepare(target, paths, tmp_path / "rows", PrepareConfig(held_out=6), Silent())
    held = [row for row in read_eval_rows([tmp_path / "rows" / "held_out.jsonl"]) if isinstance(row, EvalRow)]
    assert {row.set for row in held} == {"sums", "chat"}
    assert all(row.id.startswith(row.set) for row in held)
