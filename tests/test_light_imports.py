"""`pip install eyas` brings no torch: the light packages must not import it, and this test must be able to fail."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from eyas.shipped import draft_folder

HEAVY = ["torch", "transformers", "numpy", "safetensors", "tokenizers"]
LIGHT = [
    "eyas",
    "eyas.cli.app",
    "eyas.cli.commands.accept",
    "eyas.cli.commands.bench",
    "eyas.cli.served_bench",
    "eyas.bench.served.run",
    "eyas.cli.commands.chat",
    "eyas.cli.commands.check",
    "eyas.cli.commands.convert",
    "eyas.cli.commands.demo",
    "eyas.cli.commands.engines",
    "eyas.cli.commands.eval",
    "eyas.cli.commands.explain",
    "eyas.cli.commands.extract",
    "eyas.cli.commands.header",
    "eyas.cli.commands.prepare",
    "eyas.cli.commands.report",
    "eyas.cli.commands.serve",
    "eyas.cli.commands.store",
    "eyas.cli.commands.train",
    "eyas.cli.commands.watch",
    "eyas.client",
    "eyas.contract.check.check",
    "eyas.contract.convert.conversion",
    "eyas.decode.accept_length",
    "eyas.records.atomic",
    "eyas.report.page",
    "eyas.serve.supervise.supervisor",
]


def heavy_imports(statement: str) -> str:
    code = f"{statement}\nimport sys\nprint(*sorted({HEAVY!r} & sys.modules.keys()))".replace(
        f"{HEAVY!r} &", f"set({HEAVY!r}) &"
    )
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_the_light_packages_import_no_torch():
    assert heavy_imports("\n".join(f"import {name}" for name in LIGHT)) == ""


def test_this_proof_can_fail():
    pytest.importorskip("numpy")
    assert heavy_imports("import eyas.decode, numpy") == "numpy"


# what is wrong on the command line -> the code that says so
CHEAP = {
    "eval D": "eval-wants-one-source",
    "eval D --target t.json": "target-unknown",
    "eval D --target T --data nope.jsonl": "eval-data-missing",
    "eval nope --target T": "checkpoint-not-found",
    "infer D --target T --data nope.jsonl": "eval-data-missing",
    "bench --target T --draft nope": "checkpoint-not-found",
    "chat --target T --prompt hi --draft nope": "checkpoint-not-found",
    "prepare --target T --out rows": "config-invalid",
    "prepare --target T --out rows --data nope.jsonl": "data-missing",
    "prepare --target T --out T --data mine.jsonl": "output-exists",
    "train --target T --data mine.jsonl --out draft": "rows-unreadable",
    "train --target T --data rows --out D": "output-exists",
}


def test_what_paths_and_options_tell_is_said_before_torch_is_imported(tmp_path: Path):
    (tmp_path / "D").symlink_to(draft_folder())
    (tmp_path / "T").mkdir()
    (tmp_path / "T" / "config.json").write_text('{"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2}')
    (tmp_path / "T" / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    (tmp_path / "mine.jsonl").write_text('{"messages": []}\n')
    code = f"""
import contextlib, io, json, sys
sys.modules["torch"] = sys.modules["transformers"] = None
from eyas.cli.app import main
for line in {list(CHEAP)!r}:
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        code = main([*line.split(), "--json"])
    print(json.dumps([line, code, json.loads(told.getvalue())["code"]]))
"""

    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)

    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found == [[line, 2, told] for line, told in CHEAP.items()], done.stderr
