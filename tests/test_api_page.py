"""The light half of docs/api.md runs as it is printed."""

import re
from pathlib import Path

import pytest

from eyas.shipped import draft_folder

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"


def test_the_example_checks_and_converts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my-draft").symlink_to(draft_folder())
    (tmp_path / "my-target").mkdir()
    config = (
        '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30,'
    )
    config += '"vocab_size": 49152, "num_attention_heads": 9, "num_key_value_heads": 3, "tie_word_embeddings": true,'
    config += '"rope_theta": 100000.0, "max_position_embeddings": 8192, "intermediate_size": 1536}'
    (tmp_path / "my-target" / "config.json").write_text(config)
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert code is not None
    light = code.group(1).split("# Accept length by replay")[0]
    found: dict[str, object] = {}

    exec(light, found)  # our own page

    assert found["report"].ledgers["sglang==0.5.23"].verdict == "ok"
    assert (tmp_path / "my-draft-sglang" / "config.json").is_file()
