"""`eyas extract --probe-only` writes the pack that `eyas eval --write-probe` writes, from any source."""

import json
from pathlib import Path

import pytest
import torch

from eyas.cli.app import main
from eyas.extract import probe as stage
from eyas.models.placement import Placement
from eyas.models.target import Target
from eyas.records.eval_rows import EvalDataEmpty, EvalRow, write_eval_rows
from eyas.replay.probe_pack import make_probe, read_probe
from eyas.talk import Silent
from states_target import BOUNDARIES, FaultySource, saved_target, true_source

ROWS = [EvalRow(id=f"r{i}", set="s", prompt_ids=(3 + i, 9, 20), response_ids=tuple(range(5, 15 + i))) for i in range(4)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_target(tmp_path_factory.mktemp("target"))


@pytest.mark.parametrize("last", ["post-norm", "pre-norm"])
def test_the_pack_is_that_of_the_target_run_by_eval(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], last: str
):
    if last == "pre-norm":  # a source that hands over the state before the final norm, and says so
        inner = true_source(target, boundaries=(*BOUNDARIES, 6))
        source = FaultySource(inner, lambda values, _: values[:, :4], last="pre-norm")
        monkeypatch.setattr(stage, "open_source", lambda *_, **__: source)
    write_eval_rows(ROWS, tmp_path / "rows.jsonl")
    words = ["--data", str(tmp_path / "rows.jsonl"), "--probe-only", str(tmp_path / "pack"), "--device", "cpu"]
    assert main(["extract", "--target", str(target), *words, "--boundaries", "1", "2", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["boundaries"] == [1, 2, 4]

    found = read_probe(tmp_path / "pack")
    whole = Target.load(target, Placement(torch.float32, torch.device("cpu")))
    wanted = make_probe(whole, found.about.target, ROWS, BOUNDARIES, Silent())
    assert found.about == wanted.about
    assert list(found.rows) == ROWS
    assert torch.equal(found.embedding_rows, wanted.embedding_rows)
    for boundary in BOUNDARIES:
        torch.testing.assert_close(found.states[boundary], wanted.states[boundary], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.last, wanted.last, rtol=1e-4, atol=1e-4)


def test_rows_without_answers_make_no_pack(tmp_path: Path, target: Path):
    (tmp_path / "prompts.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    request = stage.ProbeRequest(target=target, data=[tmp_path / "prompts.jsonl"], out=tmp_path / "pack")
    with pytest.raises(EvalDataEmpty, match="there is no recorded answer"):
        stage.extract_probe(request, stage.ExtractConfig(), Silent())


def test_one_output_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["extract", "--target", "T", "--data", str(tmp_path)]
    assert main(words) == 2
    assert "the output is not named" in capsys.readouterr().err
    assert main([*words, "--out", "a", "--probe-only", "b"]) == 2
