"""What two trainers write, rebuilt with the trained stress pair: `infer` finds the one, and refuses the other.

ModelOpt's double norm is in test_infer_recovers.py, and trained in test_infer_trained.py.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import stress_pair
from eyas.cli.app import main


@pytest.fixture
def folder(tmp_path) -> Path:
    copied = tmp_path / "draft"
    shutil.copytree(stress_pair.DRAFT, copied)
    (copied / "eyas.json").unlink()
    return copied


def inferred(folder: Path, capsys) -> tuple[int, dict]:
    rows = folder.parent / "rows.jsonl"
    rows.write_text("".join((stress_pair.FOLDER / "rows.jsonl").read_text().splitlines(keepends=True)[:8]))
    words = ["--target", str(stress_pair.TARGET), "--data", str(rows), "-k", "4", "--device", "cpu", "--json"]
    code = main(["infer", str(folder), *words])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_specforge_s_norm_output_on_a_draft_trained_with_pre_norm_feedback_is_found(folder, capsys):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "norm_output": True}))

    code, found = inferred(folder, capsys)

    best, stated = found["variants"][0], next(v for v in found["variants"] if not v["changes"])
    assert code == 1
    assert best["changes"] == {"feedback": "pre-norm"}
    assert best["accept_length"] > stated["accept_length"] + 0.2


def test_torchspec_s_sliced_head_is_refused_and_the_deep_check_says_why(folder, capsys):
    tensors = load_file(folder / "model.safetensors")
    d2t, head = tensors["d2t"], tensors["lm_head.weight"]
    whole = torch.randn(256, head.shape[1], generator=torch.Generator().manual_seed(0)).to(head) * head.std()
    whole[torch.arange(len(d2t)) + d2t] = head
    save_file({**tensors, "lm_head.weight": whole[d2t].contiguous()}, folder / "model.safetensors")

    code, found = inferred(folder, capsys)
    deep = main(["check", str(folder), "--deep", "--json"])

    assert (code, found["is_decided"]) == (1, False)
    assert deep == 1
    assert "rows of lm_head repeat wherever two draft ids have the same offset" in capsys.readouterr().out
