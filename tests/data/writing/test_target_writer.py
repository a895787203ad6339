"""A real (tiny) target writes: killed with SIGKILL in the middle, the rerun ends with the same file."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from byte_tokenizer import byte_tokenizer, save_target_with
from eyas.data.prepare import PrepareConfig, prepare
from eyas.data.prepare_config import WritingConfig
from eyas.data.text.target_text import load_target_text
from eyas.data.writing.answering import TargetWriter
from eyas.engine.batches.batch_llama import bytes_per_position
from eyas.engine.batches.batch_plan import BatchMemoryTooSmall
from eyas.engine.batches.generator import Request
from eyas.engine.llama.llama_weights import read_llama
from eyas.records.eval_rows import EvalRow, read_eval_rows
from eyas.talk import Silent
from tiny_target import tiny_target
from writing_target import save_writing_target

OPTIONS = {
    "self_chat": 45,
    "min_user_words": 1,
    "user_temperature": 0.25,
    "max_user_tokens": 60,
    "max_answer_tokens": 30,
}
KILLED = f"""
import sys
from pathlib import Path
from eyas.data.prepare import PrepareConfig, prepare
from eyas.data.prepare_config import WritingConfig
from eyas.engine.batches.generator import Request
from eyas.talk import Silent
writing = WritingConfig(device="cpu", max_batch=3, **{OPTIONS})
prepare(Path(sys.argv[1]), [], Path(sys.argv[2]), PrepareConfig(), Silent(), writing=writing)
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_writing_target(tmp_path_factory.mktemp("writing"))


def write(target: Path, out: Path) -> bytes:
    writing = WritingConfig(device="cpu", max_batch=3, **OPTIONS)
    prepare(target, [], out, PrepareConfig(), Silent(), writing=writing)
    return (out.with_name(f"{out.name}.self-chat") / "conversations.jsonl").read_bytes()


@pytest.mark.parametrize("phase", [pytest.param("user-1", marks=pytest.mark.soak), "answer-1"])
def test_killed_and_run_again_gives_the_same_conversations(target: Path, tmp_path: Path, phase: str):
    whole = write(target, tmp_path / "whole")
    assert whole.count(b"\n") > 6, "the tiny target must write conversations"
    out, file = tmp_path / "killed", tmp_path / "killed.self-chat" / f"{phase}.completions"
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(target), str(out)], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    while child.poll() is None and not (file.exists() and file.read_bytes().count(b"\n") > 4):
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert file.exists(), "the run was over before it could be killed"

    assert write(target, out) == whole


def test_the_memory_that_is_given_decides_how_many_texts_are_written_at_a_time(target: Path, tmp_path: Path):
    talk, asked = Silent(), [Request(id=str(i), prompt_ids=(3, 4, 5), max_new_tokens=4) for i in range(40)]

    def writer(**given: int) -> TargetWriter:
        config = WritingConfig(device="cpu", regenerate=True, **given)
        return TargetWriter(target, load_target_text(target, {}), config, tmp_path, talk)

    found = writer(max_cache_mib=1)("phase", asked)

    slot = 64 * bytes_per_position(read_llama(target, dtype=torch.float32, device=torch.device("cpu")))
    fitting = 2**20 // slot - 1  # one slot is spare
    assert len(found) == 40
    assert talk.lines[0].startswith(f"{fitting} sequences at a time")
    assert fitting < 40, "the budget must be what decides"
    long = Request(id="long", prompt_ids=(3,) * 64 * (2**20 // slot), max_new_tokens=1)
    with pytest.raises(BatchMemoryTooSmall, match="raise the budget of the cache"):
        writer(max_cache_mib=1)("other", [long])


def test_held_out_rows_are_what_eval_reads(target: Path, tmp_path: Path):
    writing = WritingConfig(device="cpu", **OPTIONS)
    done = prepare(target, [], tmp_path / "rows", PrepareConfig(held_out=5), Silent(), writing=writing)

    rows = read_eval_rows([tmp_path / "rows" / "held_out.jsonl"])
    assert len(rows) == done.manifest.num_held_out == 5
    assert all(isinstance(row, EvalRow) for row in rows)


def test_a_target_of_any_family_writes(tmp_path: Path):
    other = save_target_with(tmp_path / "target")
    tiny_target("gpt_oss", vocab_size=len(byte_tokenizer())).save_pretrained(other)
    text = load_target_text(other, {})
    writer = TargetWriter(other, text, WritingConfig(device="cpu"), tmp_path / "work", Silent())
    found = writer("user-1", [Request(id="a", prompt_ids=(5, 6), max_new_tokens=3)])
    assert len(found["a"].ids) == 3
    assert (tmp_path / "work" / "user-1.completions").exists()


@pytest.mark.gpu
@pytest.mark.smollm2
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_writes_conversations_in_words(smollm2_folder: Path, tmp_path: Path):
    writing = WritingConfig(self_chat=64, device="cuda", max_answer_tokens=64)
    done = prepare(smollm2_folder, [], tmp_path / "rows", PrepareConfig(held_out=4), Silent(), writing=writing)

    assert done.manifest.num_rows > 40
    records = (tmp_path / "rows.self-chat" / "conversations.jsonl").read_text().splitlines()
    questions = [json.loads(line)["messages"][0]["content"] for line in records]
    assert sum("?" in question or " me " in question for question in questions) > len(questions) / 2
