"""Nothing that prepare reads makes it hang, fill the memory or end without a word."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from byte_tokenizer import CHATML, save_target_with
from eyas.data.prepare import prepare
from eyas.data.prepare_config import PrepareConfig
from eyas.data.rows.row_store import Rows
from eyas.records.data_files import DataMalformed, DataMissing, read_conversations
from eyas.records.probe_pack import ProbeUnreadable
from eyas.records.rows import MANIFEST, RowsUnreadable
from eyas.replay.probe_pack import read_probe
from eyas.talk import Silent

LINE = json.dumps({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}) + "\n"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target_with(tmp_path_factory.mktemp("target"))


def run(target: Path, data: Path, out: Path):
    return prepare(target, [data], out, PrepareConfig(), Silent())


def test_a_small_archive_of_blank_lines_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("eyas.records.json_lines._MOST_BLANK_LINES", 1000)
    path = tmp_path / "d.jsonl.gz"
    path.write_bytes(gzip.compress(LINE.encode() + b"\n" * 100_000))
    with pytest.raises(DataMalformed, match="1001 blank lines in a row"):
        list(read_conversations([path]))
    path.write_bytes(gzip.compress((LINE + "\n" * 900).encode() * 3))
    assert len(list(read_conversations([path]))) == 3


@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.gz", "d.json"])
def test_a_line_or_a_list_beyond_all_records_is_told_before_it_fills_the_memory(tmp_path: Path, monkeypatch, name: str):
    monkeypatch.setattr("eyas.records.json_lines._MOST_LINE_BYTES", 1 << 20)
    monkeypatch.setattr("eyas.records.json_lines._MOST_LIST_BYTES", 1 << 20)
    text = ("[" if name == "d.json" else LINE) + '{"messages": "' + "x" * (1 << 21) + '"}\n'
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    with pytest.raises(DataMalformed, match="longer than 1 MiB"):
        list(read_conversations([tmp_path / name]))


def test_a_text_of_fifty_megabytes_is_counted(target: Path, tmp_path: Path):
    huge = json.loads(LINE)
    huge["messages"][0]["content"] = "word " * 10_000_000
    (tmp_path / "d.jsonl").write_text(LINE + json.dumps(huge) + "\n")
    done = run(target, tmp_path / "d.jsonl", tmp_path / "rows")
    assert done.manifest.dropped == {f"longer than {1024 * 2048} characters, and so than any row": 1}


def test_pipes_and_devices_are_not_waited_for(target: Path, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    for path in (tmp_path / "pipe.jsonl", Path("/dev/zero")):
        with pytest.raises(DataMissing, match="not a regular file"):
            run(target, path, tmp_path / "rows")
        with pytest.raises(DataMalformed, match="not a regular file"):  # it became one after the look
            list(read_conversations([path]))
    with pytest.raises(ProbeUnreadable, match="not a regular file"):
        read_probe(tmp_path / "pipe.jsonl")
    (tmp_path / "d.jsonl").write_text(LINE)
    run(target, tmp_path / "d.jsonl", tmp_path / "rows")
    (tmp_path / "rows" / MANIFEST).unlink()
    os.mkfifo(tmp_path / "rows" / MANIFEST)
    with pytest.raises(RowsUnreadable, match="not a regular file"):
        Rows(tmp_path / "rows")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_template_without_an_end_answers_a_signal_at_once(tmp_path: Path, sent: signal.Signals):
    loops = "".join(f"{{% for {letter} in range(99999) %}}" for letter in "abc") + "{% endfor %}" * 3
    target = save_target_with(tmp_path / "target", loops + CHATML)
    (tmp_path / "d.jsonl").write_text(LINE)
    arguments = ["prepare", "--target", str(target), "--data", str(tmp_path / "d.jsonl"), "--out", str(tmp_path / "r")]
    process = subprocess.Popen([sys.executable, "-m", "eyas", *arguments], stderr=subprocess.PIPE, text=True)
    time.sleep(0.5)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not _is_rendering(process.pid):
        time.sleep(0.2)
    begun = time.monotonic()
    process.send_signal(sent)
    process.wait(timeout=20)
    assert time.monotonic() - begun < 5  # two on an idle machine
    assert not (tmp_path / "r").exists()


def _is_rendering(pid: int) -> bool:
    """Three seconds of work on one core: what is loaded before takes two."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK") > 6
