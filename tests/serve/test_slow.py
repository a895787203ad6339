"""Why a server is slow although drafts are accepted: each cause from its evidence, and a round's time split."""

from pathlib import Path

import pytest

from eyas.serve.log.logged_acceptance import LoggedAcceptance
from eyas.serve.log.serving_log import ServingLog, read_serving_log
from eyas.serve.slow import round_split, slow_causes


def line(
    running: int = 1, *, graphs: bool | None = True, length: float = 2.0, throughput: float = 100.0
) -> LoggedAcceptance:
    return LoggedAcceptance(length=length, rounds=40, running=running, throughput=throughput, graphs=graphs)


def log(*lines: LoggedAcceptance, running: int = 1, **facts: str) -> ServingLog:
    return ServingLog(engine="sglang", lines=lines or (line(),), facts=facts, most_running=running)


BENCH = {
    "comparisons": [
        {"set": "all", "num_draft_tokens": 3, "ceiling": {"verify_ms": 10.0, "draft_step_ms": 1.0}},
    ],
    "batches": [
        {"batch": batch, "arms": [{"num_draft_tokens": 0, "speedup": 1.0}, {"num_draft_tokens": 3, "speedup": speedup}]}
        for batch, speedup in ((1, 1.6), (32, 1.1), (64, 0.9))
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (log(graphs_off="True"), "graphs-off"),
        (log(*[line(graphs=False)] * 3, line()), "graphs-missed"),
        (log(prefix_cache_off="True"), "prefix-cache-off"),
        (log(overlap_off="True"), "overlap-off"),
        (log(running=48, max_running="48", capped="48"), "requests-capped"),
        (log(running=8, topk="4"), "tree-wide"),
        (log(running=70), "batch-above-break-even"),
    ],
)
def test_each_cause_has_its_evidence_and_a_remedy(found, code):
    (cause,) = slow_causes(found, BENCH)

    assert cause.code == code
    assert cause.evidence
    assert cause.do


def test_a_server_that_does_well_has_no_cause():
    assert slow_causes(log(running=20, max_running="48", capped="48"), BENCH) == ()
    assert slow_causes(log(line(graphs=None), running=200)) == ()


def test_a_round_is_what_throughput_and_acceptance_leave():
    split = round_split([line(length=2.0, throughput=100.0)], 3, BENCH)

    assert split is not None
    assert (split.round_ms, split.verify_ms, split.draft_ms, split.rest_ms) == (20.0, 10.0, 3.0, 7.0)
    assert "verify 10.0, draft 3.0, sampling, scheduling and host 7.0" in str(split)
    wide = round_split([line(8, length=2.0, throughput=400.0)], 3, BENCH)
    assert wide is not None
    assert (wide.round_ms, wide.rest_ms) == (40.0, None)  # the benchmark's parts are of one request
    assert round_split([LoggedAcceptance(length=2.0, rounds=9)], 3) is None


def test_the_facts_of_recorded_launches(tmp_path):
    good = read_serving_log(Path(__file__).parent / "logs" / "sglang-0.5.15.post1-h200-good.log")

    assert (good.facts["max_running"], good.facts["capped"], good.num_draft_tokens, good.topk) == ("48", "48", 3, 1)
    assert slow_causes(good) == ()
