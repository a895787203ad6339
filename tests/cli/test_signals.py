"""Every wait answers Ctrl-C and SIGTERM within two seconds."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eyas.contract.spec.target_spec import read_target
from eyas.models.save_draft import save_draft
from tiny_draft import tiny_draft
from tiny_target import tiny_target
from tiny_tokenizer import tiny_tokenizer

MOST_S = 2.0 if os.environ.get("CI") is None else 4.0  # a busy machine may need a moment to run us at all
SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("signals")
    tiny_target(seed=5).save_pretrained(root / "target")
    tiny_tokenizer().save_pretrained(root / "target")
    draft = tiny_draft(hidden_size=32, target_hidden_size=32, vocab_size=64, draft_vocab_size=64)
    save_draft(draft, root / "draft", target_spec=read_target(root / "target"))
    row = {"set": "s", "prompt_ids": [1, 7], "response_ids": list(range(3, 20))}
    (root / "rows.jsonl").write_text("\n".join(json.dumps({"id": f"r{i}", **row}) for i in range(400)))
    os.mkfifo(root / "recipe")
    return root


def answered_s(folder: Path, arguments: list[str], number: int, begun: str) -> tuple[float, int]:
    """Seconds from the signal to the end, and the exit code; the signal is sent once stderr holds `begun`."""
    command = [sys.executable, "-m", "eyas", *arguments]
    with subprocess.Popen(
        command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        shown = ""
        while begun and begun not in shown:
            line = process.stderr.readline()
            assert line, f"it ended by itself: {shown}"
            shown += line
        time.sleep(0.5 if begun else 3.0)
        assert process.poll() is None, process.stderr.read()
        started = time.monotonic()
        process.send_signal(number)
        try:
            code = process.wait(30)
        finally:
            process.kill()
        return time.monotonic() - started, code


def check(seconds: float, code: int, number: int) -> None:
    assert seconds < MOST_S
    assert code == (130 if number == signal.SIGINT else -signal.SIGTERM)


@SIGNALS
def test_a_recipe_that_never_comes_can_be_interrupted(folder: Path, number: int):
    check(*answered_s(folder, ["eval", "--config", "recipe"], number, ""), number)


@SIGNALS
def test_a_prompt_that_never_comes_can_be_interrupted(folder: Path, number: int):
    check(*answered_s(folder, ["chat", "--target", "target"], number, ""), number)


LONG = {
    "bench": "bench --target target --draft draft --data rows.jsonl --repeats 1000 --device cpu",
    "bench in batches": "bench --target target --draft draft --data rows.jsonl --repeats 1000 --batch 4 --device cpu",
    "eval": "eval draft --target target --data rows.jsonl --batch-tokens 1 --device cpu",
    "demo": "demo --out demo",
}


@pytest.mark.soak
@SIGNALS
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.smollm2) if n == "demo" else n for n in LONG])
def test_work_can_be_interrupted(folder: Path, name: str, number: int):
    check(*answered_s(folder, LONG[name].split(), number, "loading torch"), number)
