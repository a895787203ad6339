"""The six launches on an H200 of 2026-11 (SGLang 0.5.15.post1, vLLM 0.25.1; three drafts each), replayed in fake time.

`logs/*-h200-*.log` are the engines' whole logs with shortened paths, `logs/h200_launches.json` what was recorded beside
them: command, counts of the verdict, states. See benchmarks/serve_h200_202611.md.
"""

import json
from functools import cache
from typing import Any

import pytest

from eyas.decode.accept_length import Acceptance
from eyas.serve.facts.evidence import ExitFacts
from eyas.serve.verdict.canary_run import CanaryOptions, RankResult
from eyas.serve.verdict.losslessness import Losslessness
from eyas.serve.verdict.verdict import conclude
from eyas.serve.verdict.verdict_findings import VerdictContext
from fake_world import LOGS, Run, World, drive

LAUNCHES: list[dict[str, Any]] = json.loads((LOGS / "h200_launches.json").read_text())
NAMES = [f"{row['engine']}-{row['draft']}" for row in LAUNCHES]
PHASES = {
    "sglang": [
        "launch",
        "processes",
        "distributed:target",
        "weights:target",
        "distributed:draft",
        "weights:draft",
        "memory-pools:target",
        "memory-pools:draft",
        "graphs:target:verify",
        "graphs:draft:decode",
        "graphs:draft:extend",
        "scheduler-ready",
        "warm-up",
        "ready",
    ],
    "vllm": [
        "launch",
        "arguments",
        "processes",
        "distributed",
        "weights:target",
        "weights:draft",
        "profile",
        "compile:target",
        "compile:draft",
        "memory-pools",
        "autotune",
        "graphs:target",
        "graphs:draft",
        "graphs:draft:prefill",
        "graphs:draft:decode",
        "kernel-warm-up",
        "scheduler-ready",
        "ready",
    ],
}


@cache
def replayed(name: str) -> Run:
    """One launch from its first line to its end: the answers of /health as its own access log has them."""
    row = LAUNCHES[NAMES.index(name)]
    world = World()
    world.process(0, 100, "python3 -m engine", cpu=0.5)
    world.at(0, port="refused", health="refused")
    end = world.replay(row["log"], start=20.0, access=True)
    code = row["stopped"]["exit_code"]
    world.gone(end + 2)
    world.at(end + 2, exit=ExitFacts(code=code, num_oom_kills=0), port="refused", health="refused")
    return drive(world, row["engine"], row["version"], until=end + 30)


def order_of(run: Run) -> list[str]:
    return list(lasting(run))


def lasting(run: Run) -> dict[str, float]:
    """Phase key -> seconds."""
    return {row["key"]: row["duration_s"] for row in run.supervisor.timeline_document()["phases"]}


@pytest.mark.parametrize("name", NAMES)
def test_the_phases_of_a_real_launch_are_seen_in_order(name: str):
    row = LAUNCHES[NAMES.index(name)]

    assert order_of(replayed(name)) == PHASES[row["engine"]]


@pytest.mark.parametrize("name", NAMES)
def test_a_real_launch_is_never_called_stalled_and_ends_without_being_a_crash(name: str):
    run = replayed(name)
    states = [state for _, state in run.states]
    warm = ["warming-up"] if name.startswith("sglang") else []

    assert states == ["starting", *warm, "ready", "draining", "stopped"]
    assert run.last.cause is None


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("sglang")])
def test_sglangs_503_is_its_warm_up_and_lasts_until_it_answers_200(name: str):
    run = replayed(name)
    at = {state: second for second, state in run.states}

    assert 3 <= at["ready"] - at["warming-up"] <= 8


@pytest.mark.parametrize("name", NAMES)
def test_the_long_silences_of_a_real_start_belong_to_the_phase_that_caused_them(name: str):
    """Imports of the core (20 s and more), tracing, kernels: not to the phase before them."""
    lasted = lasting(replayed(name))

    assert lasted["processes"] > 20
    if name.startswith("vllm"):
        assert lasted["arguments"] <= 2
        assert lasted["weights:draft"] <= 2
        assert lasted["profile"] >= 5
        assert lasted["kernel-warm-up"] >= 18
        assert lasted["graphs:draft:decode"] <= 2
    else:
        assert 20 <= lasted["graphs:target:verify"] <= 35  # Triton compiles at the first batch size


@pytest.mark.parametrize("name", NAMES)
def test_the_recorded_counts_give_the_recorded_verdict(name: str):
    row = LAUNCHES[NAMES.index(name)]
    acceptance = Acceptance(
        rounds=row["rounds"], accepted_at=tuple(row["accepted_at"]), proposed_at=(row["rounds"],) * 3
    )
    result = RankResult(
        rank=None,
        acceptance=acceptance,
        num_answers=row["answers"],
        num_looping=0,
        num_tokens=row["tokens"],
        source=row["source"],
    )
    answers = Losslessness(
        num_compared=row["losslessness"]["compared"],
        num_equal=row["losslessness"]["equal"],
        num_tokens=row["losslessness"]["tokens"],
    )

    verdict = conclude([result], answers, True, CanaryOptions(num_draft_tokens=3), VerdictContext(ledger=row["ledger"]))

    assert [f.code for f in verdict.findings] == row["findings"]
    assert verdict.ok == (row["draft"] == "good") == row["ok"]
    assert verdict.words.splitlines()[0].split("; next:")[0] == row["words"].splitlines()[0].split("; next:")[0]


def test_only_a_draft_of_which_nothing_is_accepted_is_said_to_be_that():
    said = {f"{row['engine']}-{row['draft']}": row["words"] for row in LAUNCHES}

    assert [name for name, words in said.items() if "nothing is accepted" in words] == [
        "sglang-no-lm-head",
        "vllm-no-lm-head",
        "vllm-no-layer",
    ]
    assert "only 10% of first drafts are accepted" in said["sglang-no-layer"]
