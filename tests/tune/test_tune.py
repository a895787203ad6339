"""`eyas tune`: one replay gives acceptance at every K, costs give speeds, the best are measured beside it."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyas.cli.app import main
from eyas.decode.accept_length import Acceptance
from eyas.models.save_draft import save_draft
from eyas.models.target import LiveStates, Target
from eyas.records.eval_rows import EvalRow, write_eval_rows
from eyas.replay.replay import replay_depths, replay_states
from eyas.talk import Silent
from eyas.tune.prediction import Costs, Setting, best, break_even, predict
from eyas.tune.tune_config import TuneConfig, TuneConfigInvalid
from tiny_draft import tiny_draft
from tiny_target import tiny_target
from tiny_tokenizer import tiny_tokenizer

SIZES = {"target_hidden_size": 32, "vocab_size": 64, "draft_vocab_size": 64, "aux_boundaries": (1, 2, 3)}


def rows(num: int = 3, length: int = 12) -> list[EvalRow]:
    ids = torch.randint(3, 60, (num, length), generator=torch.Generator().manual_seed(3)).tolist()
    return [
        EvalRow(id=str(i), set="chat", prompt_ids=tuple(row[:4]), response_ids=tuple(row[4:]))
        for i, row in enumerate(ids)
    ]


def test_one_replay_gives_for_each_k_what_a_replay_at_that_k_gives():
    states = LiveStates(Target(tiny_target()))
    draft = tiny_draft(**SIZES).eval()
    # a text that the draft would write accepts something at each depth
    told = [EvalRow(id="r", set="s", prompt_ids=(5, 6), response_ids=(7, 7, 7, 8, 8, 8, 7, 7))]

    found = replay_depths(states, draft, [*rows(), *told], range(1, 5), Silent())

    for k, results in found.items():
        assert results == replay_states(states, draft, [*rows(), *told], k, Silent())


def of(accepted: dict[int, float]) -> dict[int, Acceptance]:
    return {
        k: Acceptance.of_rounds([k] * round(100 * share) + [0] * (100 - round(100 * share)), k)
        for k, share in accepted.items()
    }


@given(
    plain=st.floats(0.001, 1),
    first=st.floats(1, 3),
    step=st.floats(0, 1),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=7),
)
def test_no_prediction_exceeds_its_accept_length_and_the_best_is_the_fastest(
    plain: float, first: float, step: float, shares: list[float]
):
    seconds = {0: plain, 1: plain * first, 7: plain * (first + 6 * step)}
    settings = predict(of(dict(enumerate(shares, 1))), Costs(concurrency=1, seconds=seconds, source="made up"))

    assert all(s.speedup <= s.accept_length * (1 + 1e-9) for s in settings)
    assert best(settings, 1)[0].speedup == max(s.speedup for s in settings)
    assert [s.num_draft_tokens for s in settings] == list(range(1, len(shares) + 1))


def test_depths_that_were_not_timed_lie_on_the_line():
    costs = Costs(concurrency=8, seconds={0: 1.0, 1: 2.0, 5: 4.0}, source="two arms")

    assert [costs.at(k) for k in (0, 1, 3, 5, 7)] == pytest.approx([1, 2, 3, 4, 5])
    assert Costs(concurrency=8, seconds={0: 1.0, 3: 2.0}, source="one arm").at(5) == 2.0


def setting(level: int, speedup: float, measured: float | None = None) -> Setting:
    return Setting(
        concurrency=level,
        num_draft_tokens=3,
        accept_length=2.0,
        pass_ms=1.0,
        speedup=speedup,
        tokens_per_s=1.0,
        measured=measured,
    )


def test_break_even_is_the_first_concurrency_at_which_every_k_loses_and_a_measurement_goes_first():
    assert "up to concurrency 8 and loses from 32" in break_even([setting(1, 1.5), setting(8, 1.1), setting(32, 0.8)])
    assert "up to concurrency 1 and loses from 8" in break_even([setting(1, 1.5), setting(8, 1.1, 0.9)])
    assert "loses at concurrency 4 already" in break_even([setting(4, 0.9)])
    assert "pays at every concurrency" in break_even([setting(1, 1.2), setting(2, 1.01)])


@pytest.mark.parametrize("text", ["", "0", "1,,2", "a", "5000", "1..8", "٣"])
def test_a_concurrency_that_is_not_a_number_is_refused(text: str):
    with pytest.raises(TuneConfigInvalid, match="--concurrency"):
        TuneConfig(concurrency=text)


def test_the_command_predicts_every_k_and_measures_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    # Of a model that takes a tenth of a millisecond a pass, noise makes any speedup.
    monkeypatch.setattr("eyas.tune.run.impossible", lambda comparisons: None)
    monkeypatch.setattr("eyas.tune.run.impossible_in_batches", lambda batches: None)
    tiny_target().save_pretrained(tmp_path / "target")
    tiny_tokenizer().save_pretrained(tmp_path / "target")
    save_draft(tiny_draft(**SIZES), tmp_path / "draft")
    write_eval_rows(rows(), tmp_path / "rows.jsonl")
    words = ["--target", str(tmp_path / "target"), "--draft", str(tmp_path / "draft"), "--max-new-tokens", "6"]
    words += ["--data", str(tmp_path / "rows.jsonl"), "--most", "3", "--confirm", "2", "--repeats", "1"]
    words += ["--concurrency", "1,2", "--out", str(tmp_path / "tune.json"), "--json"]

    assert main(["tune", *words]) == 0

    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told == json.loads((tmp_path / "tune.json").read_text())
    assert told["schema"] == "eyas.tune/1"
    assert [(s["concurrency"], s["num_draft_tokens"]) for s in told["settings"]] == [
        (level, k) for level in (1, 2) for k in (1, 2, 3)
    ]
    measured = [s for s in told["settings"] if s["measured"] is not None]
    assert len(measured) == 4, "the best two at each concurrency"
    assert told["chosen"].keys() == {"1", "2"}
    assert told["num_rows"] == 3
