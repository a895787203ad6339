"""Applying a plan: atomic under kill -9 and a full disk, audited, small in memory; torch reads the .bin."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from conversions import content, convert, planned
from drafts import DraftBuild, flat_config, shapes, tensors, with_changes, write_draft, write_target
from eyas.contract.convert.conversion import AuditFailed, PlannedTensor, SourceChanged, SourceRange
from eyas.contract.convert.conversion_apply import apply_conversion, audit_tensor
from eyas.contract.convert.write_torch_bin import BinDtypeUnwritable, write_torch_bin
from eyas.contract.files.checkpoint import DTYPE_BITS
from eyas.records.atomic import OutputExists, WriteFailed
from eyas.talk import Silent


def test_an_output_that_is_there_is_kept(tmp_path: Path):
    source = write_draft(tmp_path / "s")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(OutputExists):
        convert(source, "sglang", tmp_path / "out")
    assert (tmp_path / "out" / "mine").read_text() == "x"


def test_a_bin_is_read_by_torch_with_weights_only_and_by_eyas(tmp_path: Path):
    torch = pytest.importorskip("torch")
    source = write_draft(tmp_path / "s")
    convert(source, "eagle", tmp_path / "out", write_target(tmp_path / "t", weights=False))
    state = torch.load(tmp_path / "out" / "pytorch_model.bin", weights_only=True)
    wanted = tensors(DraftBuild())
    assert len(state) == len(wanted)
    up = state["midlayer.mlp.up_proj.weight"]
    assert (up.dtype, tuple(up.shape)) == (torch.bfloat16, (24, 16))
    assert bytes(up.view(torch.uint8).numpy()) == wanted["layers.0.mlp.up_proj.weight"][2]
    mapped = torch.load(tmp_path / "out" / "pytorch_model.bin", weights_only=True, mmap=True)
    assert torch.equal(mapped["d2t"], state["d2t"])


def test_strided_tensors_of_a_bin_are_read_through_torch(tmp_path: Path):
    torch = pytest.importorskip("torch")
    source = write_draft(tmp_path / "s", names="midlayer", dtype="F32")
    from safetensors.torch import load_file

    state = load_file(source / "model.safetensors")
    state["midlayer.mlp.up_proj.weight"] = state["midlayer.mlp.up_proj.weight"].t().contiguous().t()
    folder = tmp_path / "bin"
    folder.mkdir()
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "config.json").write_text((source / "config.json").read_text())

    convert(folder, "sglang", tmp_path / "out")

    assert content(tmp_path / "out")[1] == content(source)[1]


def test_a_dtype_without_a_torch_storage_cannot_go_into_a_bin(tmp_path: Path):
    tensor = PlannedTensor(canonical="a", name="a", dtype="F8_E8M0", shape=(1,), source=b"1", origin="a")
    with pytest.raises(BinDtypeUnwritable):
        write_torch_bin(tmp_path / "x.bin", [tensor], lambda tensor, at: lambda: 0)


def test_the_audit_finds_one_wrong_byte(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"abcdef" * 1000)
    (tmp_path / "b").write_bytes(b"abcdef" * 999 + b"abcdeX")
    tensor = PlannedTensor(
        canonical="w", name="w", dtype="U8", shape=(6000,), origin="w",
        source=SourceRange(path=tmp_path / "a", begin=0, end=6000),
    )  # fmt: skip
    audit_tensor(tensor, tmp_path / "a", 0)
    with pytest.raises(AuditFailed):
        audit_tensor(tensor, tmp_path / "b", 0)


def test_a_source_that_shrinks_is_named(tmp_path: Path):
    source = write_draft(tmp_path / "s")
    plan = planned(source, "sglang")
    os.truncate(source / "model.safetensors", 600)
    with pytest.raises(SourceChanged):
        apply_conversion(plan, tmp_path / "out", Silent())
    assert os.listdir(tmp_path) == ["s"]


CHILD = """
import sys, resource, signal
from pathlib import Path
sys.path.insert(0, {tests!r})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
{setup}
from conversions import convert
convert(Path({source!r}), "sglang", Path({out!r}))
"""


def child(setup: str, source: Path, out: Path) -> list[str]:
    tests = str(Path(__file__).resolve().parents[2] / "support")
    return [sys.executable, "-c", CHILD.format(tests=tests, setup=setup, source=str(source), out=str(out))]


def test_a_full_disk_is_said_and_nothing_is_left(tmp_path: Path):
    source = write_draft(tmp_path / "s")
    setup = "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))"
    done = subprocess.run(child(setup, source, tmp_path / "out"), capture_output=True, text=True, check=False)
    assert "write-failed" in done.stderr
    assert os.listdir(tmp_path) == ["s"]


def test_a_disk_that_fills_up_raises_write_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*args: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(WriteFailed, match="No space left"):
        convert(write_draft(tmp_path / "s"), "sglang", tmp_path / "out")
    assert os.listdir(tmp_path) == ["s"]


def test_kill_9_in_the_middle_leaves_nothing_half_written(tmp_path: Path):
    source = write_draft(tmp_path / "s")
    # the child stops inside its third tensor, as if the disk were slow, and is killed there
    setup = (
        "import eyas.contract.convert.write_safetensors as w, time\n"
        "real, count = w.write_tensor, [0]\n"
        "def slow(*a):\n"
        "    count[0] += 1\n"
        "    if count[0] == 3: print('in the middle', flush=True); time.sleep(60)\n"
        "    real(*a)\n"
        "w.write_tensor = slow"
    )
    process = subprocess.Popen(child(setup, source, tmp_path / "out"), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "in the middle"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()

    assert not (tmp_path / "out").exists()
    assert [name for name in os.listdir(tmp_path) if name.endswith(".part")], "the kill came in the middle"

    convert(source, "sglang", tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["out", "s"], "the next run clears the leavings away"


def test_memory_stays_small_for_a_large_head(tmp_path: Path):
    build = DraftBuild(hidden=64, target_hidden=64, draft_vocab=1 << 20, vocab=1 << 20)
    big = tmp_path / "s"
    big.mkdir()
    names, at, header = shapes(build), 0, {}
    for name, shape in names.items():
        size = DTYPE_BITS["F32"] // 8
        for length in shape:
            size *= length
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(big / "model.safetensors", "wb") as file:  # a sparse file of 256 MB
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    (big / "config.json").write_text(json.dumps(flat_config(with_changes(build, dtype="F32"))))
    code = child("", big, tmp_path / "out")
    # not ru_maxrss: a child starts with the peak of the process that started it
    code[-1] += "\nimport re; print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    start = time.monotonic()
    done = subprocess.run(code, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 300_000, f"{done.stdout} kB in {time.monotonic() - start:.1f} s"
