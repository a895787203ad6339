"""Files whose names are not valid UTF-8 are used, or refused in words: safetensors cannot open them."""

import json
import os
import shutil
from pathlib import Path

import pytest
from safetensors import SafetensorError, safe_open

from eyas.cli.app import main
from eyas.cli.failures import failure_of
from eyas.contract.spec.target_spec import read_target
from eyas.models.save_draft import save_draft
from tiny_draft import tiny_draft
from tiny_target import tiny_target
from tiny_tokenizer import tiny_tokenizer


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `draft` and `rows.jsonl` under a name that is not valid UTF-8; `target` lies beside it."""
    root = Path(os.fsdecode(os.fsencode(tmp_path_factory.mktemp("odd")) + b"/d\xff"))
    tiny_target(seed=5).save_pretrained(root.parent / "target")
    tiny_tokenizer().save_pretrained(root.parent / "target")
    root.mkdir()
    draft = tiny_draft(hidden_size=32, target_hidden_size=32, vocab_size=64, draft_vocab_size=64)
    save_draft(draft, root.parent / "draft", target_spec=read_target(root.parent / "target"))
    (root.parent / "draft").rename(root / "draft")
    row = {"id": "r", "set": "s", "prompt_ids": [1, 7], "response_ids": list(range(3, 20))}
    (root / "rows.jsonl").write_text(json.dumps(row))
    return root


COMMANDS = ["bench --draft", "eval", "check", "header", "infer", "chat --prompt w1 --draft"]


@pytest.mark.parametrize("is_draft_odd", [True, False])
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_take_such_names(odd: Path, capsys: pytest.CaptureFixture[str], command: str, is_draft_odd: bool):
    name, *options = command.split()
    plain = odd.parent / "plain"
    if not plain.exists():
        shutil.copytree(odd / "draft", plain)
    line = [name, *options, str(odd / "draft" if is_draft_odd else plain), "--json"]
    if name != "header":
        line += ["--target", str(odd.parent / "target")]
    if name in ("bench", "eval"):
        line += ["--out", str(odd / f"{name}.json")]
    if name in ("bench", "eval", "infer"):
        line += ["--data", str(odd / "rows.jsonl")]
    if name in ("bench", "eval", "infer", "chat"):
        line += ["--max-new-tokens", "4", "--device", "cpu"]
    code = main([*line, "--repeats", "1"] if name == "bench" else line)
    out, err = capsys.readouterr()
    document = json.loads(out.splitlines()[-1])
    assert code in (0, 1), err
    assert document["schema"].startswith("eyas.")
    if "--out" in line:
        assert json.loads((odd / f"{name}.json").read_text())["schema"] == f"eyas.{name}/1"


def test_a_library_that_cannot_take_such_a_name_is_told_by_it(odd: Path):
    with pytest.raises(SafetensorError) as caught:
        safe_open(odd / "draft" / "model.safetensors", "pt").__enter__()
    error = failure_of(caught.value, ["eval"])
    assert (error.code, error.exit_code) == ("name-not-utf-8", 2)
