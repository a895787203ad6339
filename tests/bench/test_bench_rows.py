"""What `eyas bench` refuses of its data before an engine is opened."""

import json
from pathlib import Path

import pytest

from eyas.bench.bench_config import BenchConfig
from eyas.bench.bench_engine import bench_engine
from eyas.replay.replay import RowOutsideVocabulary
from eyas.talk import Silent
from tiny_checkpoints import VOCAB, write_draft, write_target


@pytest.mark.parametrize("key", ["prompt_ids", "response_ids"])
def test_rows_of_another_tokenizer_are_refused(tmp_path: Path, key: str):
    target, draft = write_target(tmp_path / "target"), write_draft(tmp_path / "draft")
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps({"prompt_ids": [1], "response_ids": [2], key: [3, VOCAB]}))
    with pytest.raises(RowOutsideVocabulary, match=f"token id {VOCAB}"):
        bench_engine(target, draft, [data], BenchConfig(device="cpu"), cache=tmp_path / "cache", talk=Silent())
