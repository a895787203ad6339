"""Phases out of real logs and of constructed ones."""

from eyas.serve.log.log_lines import LineSplitter
from eyas.serve.log.phases import PhaseTracker
from eyas.serve.log.tables import table_for
from fake_world import LOGS, sglang


def track(engine: str, version: str | None, data: bytes) -> PhaseTracker:
    tracker = PhaseTracker(table_for(engine, version), 0.0)
    for line in LineSplitter().feed(data, 1.0):
        tracker.feed(line)
    return tracker


def keys(tracker: PhaseTracker) -> list[str]:
    return [run.key for run in tracker.runs]


def test_sglang_0515_loads_the_draft_before_the_graphs():
    tracker = track("sglang", "0.5.15.post1", (LOGS / "sglang-0.5.15.post1-eagle3.log").read_bytes())

    assert keys(tracker)[1:] == [
        "processes",
        "distributed:target",
        "weights:target",
        "distributed:draft",
        "weights:draft",
        "memory-pools:target",
        "memory-pools:draft",
        "graphs:target:prefill",
        "graphs:target:verify",
        "graphs:draft:prefill",
        "graphs:draft:decode",
        "graphs:draft:extend",
        "scheduler-ready",
        "ready",
    ]
    assert tracker.facts["model_class"] == "LlamaForCausalLMEagle3"


def test_sglang_up_to_0513_loads_the_draft_after_the_targets_graphs():
    lines = [
        "server_args=ServerArgs(model_path='m')",
        "Init torch distributed begin.",
        "Init torch distributed ends. elapsed=0.19 s, mem usage=0.09 GB",
        "Load weight begin. avail mem=139.09 GB",
        "Load weight end. elapsed=0.14 s, type=LlamaForCausalLM, avail mem=138.83 GB, mem usage=0.27 GB.",
        "KV Cache is allocated. #tokens: 3119000, K size: 33.46 GB, V size: 33.46 GB",
        "Memory pool end. avail mem=71.68 GB",
        "Capture cuda graph begin. This can take up to several minutes. avail mem=69.26 GB",
        "Capture cuda graph end. Time elapsed: 3.51 s. mem usage=0.26 GB. avail mem=68.47 GB.",
        "Init torch distributed begin.",
        "Init torch distributed ends. elapsed=0.00 s, mem usage=0.00 GB",
        "Load weight begin. avail mem=68.47 GB",
        "Load weight end. elapsed=0.01 s, type=LlamaForCausalLMEagle3, avail mem=68.40 GB, mem usage=0.07 GB.",
        "KV Cache is allocated. #tokens: 3119000, K size: 1.12 GB, V size: 1.12 GB",
        "Memory pool end. avail mem=66 GB",
        "Capture draft cuda graph begin. This can take up to several minutes. avail mem=66.34 GB",
        "Capture draft cuda graph end. Time elapsed: 4.33 s. mem usage=0.11 GB. avail mem=66.23 GB.",
        "Capture draft extend cuda graph begin. This can take up to several minutes. avail mem=66.23 GB",
    ]
    tracker = track("sglang", "0.5.9", "".join(sglang(i, line) for i, line in enumerate(lines)).encode())

    assert keys(tracker)[2:] == [
        "distributed:target",
        "weights:target",
        "memory-pools:target",
        "graphs:target:decode",
        "distributed:draft",
        "weights:draft",
        "memory-pools:draft",
        "graphs:draft:decode",
        "graphs:draft:extend",
    ]


def test_a_straggling_rank_does_not_move_the_phase_back():
    tracker = PhaseTracker(table_for("sglang", "0.5.23"), 0.0)
    text = (
        sglang(1, "Load weight begin. avail mem=1 GB", "TP0")
        + sglang(2, "Load weight end. elapsed=1 s, type=LlamaForCausalLM", "TP0")
        + sglang(3, "Load weight begin. avail mem=1 GB", "TP0")
        + sglang(4, "Load weight begin. avail mem=1 GB", "TP1")
    )
    for line in LineSplitter().feed(text.encode(), 1.0):
        tracker.feed(line)

    assert tracker.current.key == "weights:draft"


def test_two_ranks_that_load_one_model_are_no_second_model():
    text = sglang(1, "Load weight begin. avail mem=1 GB", "TP0") + sglang(1, "Load weight begin. avail mem=1 GB", "TP1")

    assert keys(track("sglang", "0.5.23", text.encode())) == ["launch", "weights:target"]


def test_vllm_v2_finds_draft_weights_compile_and_graphs():
    tracker = track("vllm", "0.25.1", (LOGS / "vllm-0.25.1-eagle3.log").read_bytes())

    assert [key for key in keys(tracker) if "draft" in key] == [
        "weights:draft",
        "compile:draft",
        "graphs:draft",
        "graphs:draft:prefill",
        "graphs:draft:decode",
    ]
    assert tracker.facts["aux_layers"] == "(2, 15, 27)"
    assert tracker.facts["version"] == "0.25.1"


def test_a_plain_vllm_has_no_draft():
    assert not [k for k in keys(track("vllm", "0.25.1", (LOGS / "vllm-0.25.1-plain.log").read_bytes())) if "draft" in k]


def test_a_bars_progress_and_eta_are_the_phases():
    data = sglang(1, "Capture draft decode CUDA graph begin. backend=full").encode()
    data += b"\rCapturing batches (bs=256 avail_mem=68.30 GB):   2%| | 1/51 [00:01<01:14,  1.49s/it]\r"
    tracker = track("sglang", "0.5.15", data + b"\r")

    progress = tracker.current.progress
    assert progress is not None
    assert (progress.done, progress.total, progress.unit) == (1, 51, "batch sizes")
    assert tracker.current.bar_eta == 74


def test_a_line_repeated_for_ever_stops_being_progress():
    tracker = PhaseTracker(table_for("sglang", "0.5.23"), 0.0)
    meanings = [
        tracker.feed(line).moved
        for line in LineSplitter().feed(b"".join(b"still waiting, try %d\n" % i for i in range(200)), 1.0)
    ]

    assert meanings[0] == {"log"}
    assert meanings[-1] == frozenset()


def test_a_bar_that_is_redrawn_without_advancing_is_no_progress():
    tracker = PhaseTracker(table_for("sglang", "0.5.23"), 0.0)
    same = b"\rMulti-thread loading shards:  10%%| | 1/10 [00:%02d<09:00, 60.0s/it]"
    meanings = [
        tracker.feed(line).moved for line in LineSplitter().feed(b"".join(same % i for i in range(5)) + b"\n", 1.0)
    ]

    assert "progress" in meanings[0]
    assert all(not moved for moved in meanings[1:])


def test_a_second_start_in_the_same_log_begins_anew():
    once = (LOGS / "sglang-0.5.15.post1-crash-draft-graph.log").read_bytes()
    tracker = track("sglang", "0.5.15.post1", once + b"\n" + sglang(100, "server_args=ServerArgs(x)").encode())

    assert keys(tracker) == ["launch", "processes"]
    assert tracker.dying_at is None


def test_sglangs_kill_of_itself_after_a_tidy_drain_is_its_goodbye():
    drain = [
        "SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
        "Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].",
        "kill_process_tree called: parent_pid=7, include_parent=True, pid=7",
    ]
    tracker = track("sglang", "0.5.15.post1", "".join(sglang(i, line) for i, line in enumerate(drain)).encode())

    assert tracker.finished_at is not None
    assert not tracker.self_killed


def test_sglangs_kill_of_itself_without_a_drain_is_a_death():
    death = [
        "Received sigquit from a child process. It usually means the child failed.",
        "kill_process_tree called: parent_pid=7, include_parent=True, pid=7",
    ]
    tracker = track("sglang", "0.5.15.post1", "".join(sglang(i, line) for i, line in enumerate(death)).encode())

    assert tracker.self_killed
    assert tracker.finished_at is None
