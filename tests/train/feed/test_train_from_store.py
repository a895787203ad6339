"""Whole runs whose states come from a store."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from eyas.data.rows.row_store import Rows
from eyas.data.text.tokenise import TokenRow
from eyas.models.target import Target
from eyas.store.reader import StoreLacksBoundary
from eyas.talk import Silent
from eyas.train.config import TrainConfig, TrainConfigInvalid
from eyas.train.preflight.examine import examine, plan_train
from eyas.train.preflight.given_states import StatesOfAnotherTarget, StoreLacksRows
from eyas.train.request import TrainRequest
from eyas.train.run.launch_ranks import train_on
from eyas.train.run.train import train
from state_store import write_store
from train_run_folder import make_run_folder

BOUNDARIES = (1, 2, 3)
CONFIG = TrainConfig(
    aux_boundaries=BOUNDARIES, steps=5, batch_tokens=150, draft_vocab_size=32, ttt_steps=3, lr=3e-3, eval_every=0
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> tuple[Path, Path, Path]:
    """Target, rows, and a store of its states in fp32."""
    folder = tmp_path_factory.mktemp("inputs")
    target, rows = make_run_folder(folder)
    return target, rows, write_store(folder / "store", target, Rows(rows), BOUNDARIES)


def run(inputs: tuple[Path, Path, Path], out: Path, config: TrainConfig = CONFIG, **changes: Any) -> Any:
    request = TrainRequest(
        **{"target": inputs[0], "rows": inputs[1], "hidden_states": inputs[2], "out": out, "device": "cpu", **changes}
    )
    return train(request, config, plan_train(request, config, Silent()), Silent())


def losses(done: Any) -> list[float]:
    return [record["loss"] for record in done.metrics]


@pytest.fixture(scope="module")
def live(inputs, tmp_path_factory) -> list[float]:
    return losses(run(inputs, tmp_path_factory.mktemp("live") / "d", hidden_states=None))


def test_the_losses_are_those_of_a_run_with_the_target_in_the_process(inputs, live, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(Target, "load", None)  # the target is never loaded

    done = run(inputs, tmp_path / "d")

    assert losses(done) == pytest.approx(live, rel=1e-6)
    assert done.fed["tokens"] == done.plan.num_tokens
    about = json.loads((tmp_path / "d" / "eyas.json").read_text())["about"]
    assert about["states"] == "a test"


@pytest.mark.parametrize(
    ("options", "rel"),
    [
        ({"is_normed": False}, 1e-6),
        ({"dtype": "bfloat16"}, 0.01),
        ({"dtype": "float8_e4m3"}, 0.05),
    ],
)
def test_other_forms_of_the_same_states_teach_the_same(options, rel, inputs, live, tmp_path: Path):
    store = write_store(tmp_path / "s", inputs[0], Rows(inputs[1]), BOUNDARIES, **options)
    found = losses(run((inputs[0], inputs[1], store), tmp_path / "d"))
    assert found[0] == pytest.approx(live[0], rel=rel)  # later ones of so small a draft go apart
    assert found[-1] == pytest.approx(live[-1], rel=10 * rel)
    assert rel == 1e-6 or found[0] != pytest.approx(live[0], rel=1e-6), "the form is in the data"


def test_a_store_alone_holds_the_rows_and_a_superset_of_boundaries_in_any_order_does(inputs, tmp_path: Path):
    rows = [*Rows(inputs[1]), TokenRow((5, 6, 7, 8), ())]  # the last one is not known to be the target's
    store = write_store(tmp_path / "s", inputs[0], rows, (0, 1, 2, 3, 4))
    talk = Silent()
    request = TrainRequest(target=inputs[0], hidden_states=store, out=tmp_path / "d", device="cpu")
    plan = plan_train(request, CONFIG, talk)
    assert len(plan.rows) == len(Rows(inputs[1]))
    assert any("1 row of the store without a mask" in note for note in talk.notes)
    assert losses(train(request, CONFIG, plan, talk))[-1] < losses(train(
        dataclasses.replace(request, out=tmp_path / "e"), CONFIG, plan, talk))[0]  # fmt: skip


def test_a_new_draft_reads_the_boundaries_that_the_store_holds(inputs, tmp_path: Path):
    store = write_store(tmp_path / "s", inputs[0], Rows(inputs[1]), (1, 2, 4))
    request = TrainRequest(target=inputs[0], rows=inputs[1], hidden_states=store, out=tmp_path / "d", device="cpu")
    talk = Silent()
    plan = plan_train(request, dataclasses.replace(CONFIG, aux_boundaries=None), talk)
    assert plan.spec.aux_boundaries == (1, 2, 4)
    assert "aux boundaries 1 2 4: those of the store" in talk.notes
    with pytest.raises(StoreLacksBoundary, match="boundary 3"):
        plan_train(request, CONFIG, talk)


def test_rows_whose_prompts_have_no_states_are_cut_there(inputs, tmp_path: Path):
    store = write_store(tmp_path / "s", inputs[0], Rows(inputs[1]), BOUNDARIES, first=3)
    request = TrainRequest(target=inputs[0], rows=inputs[1], hidden_states=store, out=tmp_path / "d", device="cpu")
    talk = Silent()
    plan = plan_train(request, CONFIG, talk)
    assert [plan.rows.length(i) + 3 for i in range(len(plan.rows))] == [len(row.token_ids) for row in Rows(inputs[1])]
    assert any("states of their last positions only" in note for note in talk.notes)
    assert losses(train(request, CONFIG, plan, talk))


def test_a_run_that_was_stopped_ends_as_an_undisturbed_one(inputs, tmp_path: Path):
    from contextlib import contextmanager

    from eyas.train.run.stopping import TrainingStopped

    whole = run(inputs, tmp_path / "whole")
    asked = iter([False, False, True])

    @contextmanager
    def listen():
        yield lambda: next(asked, True)

    request = TrainRequest(target=inputs[0], rows=inputs[1], hidden_states=inputs[2], out=tmp_path / "d", device="cpu")
    with pytest.raises(TrainingStopped):
        train(request, CONFIG, plan_train(request, CONFIG, Silent()), Silent(), listen=listen)
    again = train(request, CONFIG, plan_train(request, CONFIG, Silent()), Silent())
    assert losses(again) == losses(whole)


def test_held_out_rows_of_the_store_and_a_probe_pack_choose_the_draft_that_the_target_would(inputs, tmp_path: Path):
    rows = [
        {"id": str(i), "set": "s", "prompt_ids": [70, 71, 72], "response_ids": [70 + i, 80, 90, 60 + i, 75, 80, 81, 82]}
        for i in range(3)
    ]
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    known = [*Rows(inputs[1]), *(TokenRow((*row["prompt_ids"], *row["response_ids"]), ()) for row in rows[:2])]
    store = write_store(tmp_path / "s", inputs[0], known, BOUNDARIES)
    config = dataclasses.replace(CONFIG, eval_every=2)
    two = tmp_path / "two.jsonl"
    two.write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))

    found = run((*inputs[:2], store), tmp_path / "d", config, held_out=held_out)
    wanted = run(inputs, tmp_path / "e", config, held_out=two, hidden_states=None)

    assert found.plan.held_out.num_skipped == 1
    pick = lambda done: [(r["step"], r["accept_length"], r["rounds"]) for r in done.held_out]  # noqa: E731
    assert pick(found) == pick(wanted)
    assert found.written["accept_length"] == wanted.written["accept_length"]


def test_a_dry_run_needs_no_more_of_the_target(inputs, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(Target, "load", None)
    request = TrainRequest(target=inputs[0], rows=inputs[1], hidden_states=inputs[2], out=tmp_path / "d", device="cpu")
    plan = plan_train(request, CONFIG, Silent())
    found = examine(request, CONFIG, plan, Silent())
    assert found.teacher is None
    assert found.answers.num_tokens > 0
    assert "states that are read ahead" in plan.costs.memory_bytes


@pytest.mark.soak
def test_two_ranks_read_each_its_own_rows(inputs, live, tmp_path: Path):
    request = TrainRequest(target=inputs[0], rows=inputs[1], hidden_states=inputs[2], out=tmp_path / "d", device="cpu")
    plan = plan_train(request, CONFIG, Silent())
    done = train_on(2, request, CONFIG, plan, Silent, threads=1)
    assert losses(done) == pytest.approx(live, rel=1e-5)
    assert 0 < done.fed["tokens"] < plan.num_tokens


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"target": {"fingerprint": "another"}}, "config"),
        ({"tokenizer": "another"}, "tokenizer"),
        ({"vocab_size": 65_000}, "vocabulary"),
        ({"target": {"weights": "other ones"}}, "weights"),
    ],
)
def test_states_of_another_target_are_refused(changes, what, inputs, tmp_path: Path):
    store = write_store(tmp_path / "s", inputs[0], list(Rows(inputs[1]))[:1], BOUNDARIES, **changes)
    with pytest.raises(StatesOfAnotherTarget, match=f"{what} differ"):
        run((*inputs[:2], store), tmp_path / "d")


def test_rows_without_states_are_told_before_anything_is_loaded(inputs, tmp_path: Path):
    store = write_store(tmp_path / "s", inputs[0], list(Rows(inputs[1]))[:1], BOUNDARIES)
    with pytest.raises(StoreLacksRows, match="19 rows of 20 are not in the store"):
        run((*inputs[:2], store), tmp_path / "d")
    shutil.rmtree(store)
    write_store(store, inputs[0], [TokenRow((5, 6, 7), ())], BOUNDARIES)
    with pytest.raises(StoreLacksRows, match="no row of the store can be learned from"):
        run((inputs[0], None, store), tmp_path / "d", rows=None)


def test_options_that_name_no_source_or_two_are_refused(inputs, tmp_path: Path):
    for changes, what in [
        ({"rows": None, "hidden_states": None}, "neither --data nor --hidden-states"),
        ({"streams": ("http://a:1",)}, "--stream beside --hidden-states"),
        ({"rows": None, "hidden_states": None, "streams": ("http://a:1",)}, "neither"),
        ({"hidden_states": None, "streams": ("http://a:1", "http://a:1")}, "named twice"),
        ({"hidden_states": None, "read_ahead_gb": 1.0}, "--read-ahead-gb"),
        ({"read_ahead_gb": 0.0}, "--read-ahead-gb"),
    ]:
        with pytest.raises(TrainConfigInvalid, match=what):
            run(inputs, tmp_path / "d", **changes)
