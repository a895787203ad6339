"""What `eyas bench` says and refuses before an engine is opened."""

import json
from pathlib import Path

import pytest
import torch

from eyas.bench.bench_config import BenchConfig
from eyas.bench.bench_engine import bench_engine, rounds_for, say_beyond_context
from eyas.bench.measure import BenchPrompt
from eyas.contract.files.read_checkpoint import CheckpointNotFound
from eyas.replay.replay import RowOutsideVocabulary
from eyas.talk import Silent
from tiny_checkpoints import VOCAB, write_draft, write_target


def test_a_draft_that_is_not_there_is_told_first_and_as_such(tmp_path: Path):
    target = write_target(tmp_path / "target")
    with pytest.raises(CheckpointNotFound):
        bench_engine(target, tmp_path / "no", [tmp_path], BenchConfig(device="cpu"), cache=tmp_path, talk=Silent())


@pytest.mark.parametrize("key", ["prompt_ids", "response_ids"])
def test_rows_of_another_tokenizer_are_refused(tmp_path: Path, key: str):
    target, draft = write_target(tmp_path / "target"), write_draft(tmp_path / "draft")
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps({"prompt_ids": [1], "response_ids": [2], key: [3, VOCAB]}))
    with pytest.raises(RowOutsideVocabulary, match=f"token id {VOCAB}"):
        bench_engine(target, draft, [data], BenchConfig(device="cpu"), cache=tmp_path / "cache", talk=Silent())


def test_the_device_that_auto_chose_is_named_before_anything_is_measured(tmp_path: Path):
    target, draft = write_target(tmp_path / "target"), write_draft(tmp_path / "draft")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt_ids": [VOCAB], "response_ids": [2]}))
    talk = Silent()
    with pytest.raises(RowOutsideVocabulary):
        bench_engine(target, draft, [tmp_path / "rows.jsonl"], BenchConfig(), cache=tmp_path / "cache", talk=talk)
    chosen = "cuda" if torch.cuda.is_available() else "cpu"
    assert talk.lines[0].startswith(f"measuring on {chosen}, ")
    assert talk.lines[0].endswith("in float32")


@pytest.mark.parametrize(("device", "rounds", "num_notes"), [("cpu", "auto", 0), ("cuda", "reference", 1)])
def test_what_auto_chose_decides_the_rounds_of_trees_and_deep_chains(device: str, rounds: str, num_notes: int):
    for config in (BenchConfig(tree="3x3x7"), BenchConfig(num_draft_tokens="8")):
        talk = Silent()
        assert rounds_for(config, torch.device(device), talk) == rounds
        assert len(talk.notes) == num_notes


def test_prompts_that_can_pass_the_context_are_counted_and_the_others_are_not(tmp_path: Path):
    talk, prompts = Silent(), [BenchPrompt(id=str(n), set="s", prompt_ids=tuple(range(n))) for n in (10, 60, 200)]

    say_beyond_context(prompts, 40, 100, talk)
    say_beyond_context(prompts, 40, 240, talk)
    say_beyond_context(prompts, 40, None, talk)

    assert [note.partition(" prompts")[0] for note in talk.notes] == ["1 of 3"]
