"""docs/api.md runs as it is printed: its light half on the draft that ships, all of it on tiny models."""

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from eyas import api
from eyas.contract.spec.target_spec import read_target
from eyas.models.save_draft import save_draft
from eyas.records.eval_rows import EvalRow, write_eval_rows
from eyas.shipped import draft_folder
from tiny_draft import tiny_draft
from tiny_target import tiny_target
from tiny_tokenizer import tiny_tokenizer

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


@pytest.fixture
def tiny_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders and files that the page names, tiny; the work folder of the test."""
    tiny_target("llama").save_pretrained(tmp_path / "my-target")
    tiny_tokenizer().save_pretrained(tmp_path / "my-target")
    sizes = {"target_hidden_size": 32, "vocab_size": 64, "draft_vocab_size": 24, "aux_boundaries": (1, 2, 4)}
    save_draft(tiny_draft(**sizes), tmp_path / "my-draft", target_spec=read_target(tmp_path / "my-target"))
    row = EvalRow(id="1", set="s", prompt_ids=(1, 2, 3), response_ids=tuple(range(4, 24)))
    write_eval_rows([row], tmp_path / "rows.jsonl")
    talks = [
        [{"role": "user", "content": f"w{i} w2"}, {"role": "assistant", "content": f"w3 w{i} w5 w6"}]
        for i in range(1, 41)
    ]
    (tmp_path / "talks.jsonl").write_text("\n".join(json.dumps({"messages": talk}) for talk in talks))
    monkeypatch.chdir(tmp_path)
    if find_spec("matplotlib") is None:
        plots, axes = MagicMock(), (MagicMock(), MagicMock())
        plots.subplots.return_value = (MagicMock(), axes)
        monkeypatch.setitem(sys.modules, "matplotlib", MagicMock(pyplot=plots))
        monkeypatch.setitem(sys.modules, "matplotlib.pyplot", plots)
    # The one name of the page that would need a download or a package.
    resolve = api.resolve_target
    monkeypatch.setattr(
        api,
        "resolve_target",
        lambda name, **more: resolve("my-target" if name == "smollm2-135m" else name, **more),
        raising=False,
    )
    return tmp_path


def test_every_block_of_the_page_runs_as_it_is_printed(tiny_models: Path, capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    inline = re.findall(r"`(api\.\w+\([^`]*\))`", PAGE.read_text())
    assert len(blocks) >= 2
    assert inline
    capsys.readouterr()
    found: dict[str, object] = {}

    for block in blocks:
        exec(block, found)
    for expression in inline:
        eval(expression, found)

    printed = capsys.readouterr().out.splitlines()
    length = float(printed[1].split()[0])
    assert length >= 1.0
    assert len(printed) == 7, "the verdict, the accept length, two answers, rows, steps, the store"
    assert printed[6].startswith("40 rows; (")
    assert all(line.startswith("(") for line in printed[2:4])
    assert printed[4].startswith("40 rows, ")
    assert printed[5].startswith("20 steps, loss ")
    assert (tiny_models / "trained" / "config.json").is_file()
    assert "<h2>Training" in (tiny_models / "report.html").read_text()


def test_a_name_that_is_not_there_would_be_seen(tiny_models: Path):
    code = PAGE.read_text().replace("record.figures.", "record.total.")
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", code, re.S) if "record.total" in b)
    with pytest.raises(AttributeError, match="total"):
        exec(block, {})
