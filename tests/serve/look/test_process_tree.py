"""Processes by their titles, as the engines set them; a real tree."""

import os
import subprocess
import sys
import time

import pytest

from eyas.serve.facts.evidence import Observation, ProcessFacts, moved_between
from eyas.serve.look.engine_process import count_oom_kills
from eyas.serve.look.process_tree import facts_of, is_alive, label_of, tree_of


@pytest.mark.parametrize(
    ("title", "label"),
    [
        ("sglang::scheduler", "scheduler"),
        ("sglang::scheduler_TP0", "TP0"),
        ("sglang::scheduler_DP1_TP0_EP0", "DP1 TP0 EP0"),
        ("sglang::detokenizer", "detokenizer"),
        ("sglang::data_parallel_controller", "data_parallel_controller"),
        ("VLLM::EngineCore", "EngineCore"),
        ("VLLM::EngineCore_DP1", "EngineCore_DP1"),
        ("VLLM::Worker_TP3", "Worker_TP3"),
        ("mine::Worker_TP3", "Worker_TP3"),
        ("python -c from multiprocessing.resource_tracker import main;main(7)", "resource-tracker"),
        ("python -m sglang.launch_server", ""),
    ],
)
def test_ranks_are_found_by_title(title: str, label: str):
    assert label_of(title) == label


def test_a_real_child_is_in_the_tree_with_its_use():
    child = subprocess.Popen(["VLLM::EngineCore", "-c", "while True: pass"], executable=sys.executable)
    try:
        time.sleep(0.4)
        tree = {p.pid: p for p in tree_of(os.getpid())}
        time.sleep(0.4)
        later = facts_of(child.pid)
    finally:
        child.kill()
        child.wait()

    assert tree[child.pid].label == "EngineCore"
    assert tree[os.getpid()].label == "main"
    assert later is not None
    assert later.cpu_s > tree[child.pid].cpu_s
    assert tree[child.pid].rss_bytes > 1_000_000
    assert not is_alive(child.pid)
    assert tree_of(child.pid) == ()


def process(pid: int = 1, **facts: object) -> ProcessFacts:
    fields = {"parent": 0, "title": "python", "label": "", "status": "S", "cpu_s": 0.0, **facts}
    return ProcessFacts(pid=pid, **fields)  # type: ignore[arg-type]


def moves(before: ProcessFacts, after: ProcessFacts, seconds: float = 1.0) -> set[str]:
    return set(moved_between(Observation(at=0.0, processes=(before,)), Observation(at=seconds, processes=(after,))))


def test_a_polling_parent_is_no_evidence_and_a_busy_core_is():
    assert moves(process(), process(cpu_s=0.05)) == set()
    assert moves(process(), process(cpu_s=0.9)) == {"cpu"}


def test_disk_and_page_ins_count_from_a_threshold_on():
    assert moves(process(read_bytes=0), process(read_bytes=4096)) == set()
    assert moves(process(read_bytes=0), process(read_bytes=10 << 20)) == {"disk"}
    assert moves(process(page_ins=0), process(page_ins=200)) == {"page-ins"}


def test_the_oom_killers_count_is_a_number_or_not_known():
    count = count_oom_kills()

    assert count is None or count >= 0
