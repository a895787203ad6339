"""The light half of docs/api.md runs as it is printed."""

import re
from pathlib import Path

import pytest

from eyas.models.save_draft import save_draft
from eyas.shipped import draft_folder
from tiny_draft import tiny_draft
from tiny_target import tiny_target

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


def test_the_example_of_batches_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    tiny_target("llama").save_pretrained(tmp_path / "target")
    sizes = {"target_hidden_size": 32, "vocab_size": 64, "draft_vocab_size": 24, "aux_boundaries": (1, 2, 4)}
    save_draft(tiny_draft(**sizes), tmp_path / "my-draft")
    monkeypatch.chdir(tmp_path)
    code = re.search(r"## In batches.*?```python\n(.*?)```", PAGE.read_text(), re.S)
    assert code is not None
    lines = [line for line in code.group(1).splitlines() if not line.startswith("target = ")]
    capsys.readouterr()

    exec("\n".join(lines), {"Path": Path, "target": tmp_path / "target", "prompts": [[1, 2, 3], [4, 5]]})

    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2
    assert all(line.startswith("(") for line in printed)
