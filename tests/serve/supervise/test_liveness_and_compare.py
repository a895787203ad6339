"""Acceptance over time, and two runs side by side."""

from pathlib import Path

import pytest

from eyas.serve.compare import compare, flags_of, load_run
from eyas.serve.facts.evidence import CounterFacts
from eyas.serve.facts.run_folder import RunFolder
from eyas.serve.supervise.liveness import AcceptanceWatch, TokenProgress, proof_of
from fake_world import LOGS


def counters(rounds: float, *accepted: float, running: float = 1.0) -> CounterFacts:
    tokens = rounds + sum(accepted)
    return CounterFacts(generation_tokens=tokens, running=running, rounds=rounds, accepted_at=accepted, mark=(tokens,))


def test_what_was_before_we_came_does_not_count():
    watch = AcceptanceWatch()
    watch.feed(counters(1000, 0, 0))
    watch.feed(counters(1400, 320, 160))

    assert watch.rounds == 400
    assert watch.accept_length == pytest.approx(1 + 480 / 400)


def test_under_200_rounds_nothing_is_proven():
    watch = AcceptanceWatch()
    watch.feed(counters(0, 0))
    watch.feed(counters(199, 199))

    assert watch.proof() is None


def test_a_server_started_anew_begins_anew():
    watch = AcceptanceWatch()
    watch.feed(counters(0, 0))
    watch.feed(counters(500, 400))
    watch.feed(counters(10, 1))
    watch.feed(counters(310, 31))

    assert watch.rounds == 300
    assert watch.accept_length == pytest.approx(1.1)


def test_tokens_that_stop_while_requests_run_are_counted_in_seconds():
    progress = TokenProgress()
    progress.feed(counters(10, 5), 0.0)
    progress.feed(counters(20, 10), 10.0)

    assert progress.feed(counters(20, 10), 40.0) == 30.0
    assert progress.feed(counters(20, 10, running=0), 50.0) == 0.0


def test_flags_are_read_in_both_spellings():
    command = ["python", "-m", "x", "--tp", "2", "--dtype=bfloat16", "--enforce-eager"]

    assert flags_of(command) == {"program": "python -m x", "--tp": "2", "--dtype": "bfloat16", "--enforce-eager": ""}


def run(folder: Path, log: str, *flags: str, **environment: str) -> RunFolder:
    made = RunFolder.create(folder, engine="sglang")
    made.write_launch(["python", *flags], environment, engine="sglang", version="0.5.15.post1")
    made.log_path.write_bytes((LOGS / log).read_bytes())
    return made


@pytest.mark.parametrize(
    ("length", "first", "says"),
    [
        (1.09, None, "at most 9% of first drafts"),
        (1.3, 0.1, "only 10% of first drafts"),
        (1.2, None, ""),
        (1.01, None, "nothing"),
    ],
)
def test_a_length_bounds_the_first_drafts_where_the_log_does_not_count_them(
    length: float, first: float | None, says: str
):
    proof = proof_of(length, 680, first, "its log")

    assert says in proof.text
    assert proof.ok == (not says)


def test_what_was_changed_and_where_they_part(tmp_path: Path):
    a = run(tmp_path, "sglang-0.5.15.post1-crash-draft-graph.log", "--tp", "1", "--disable-radix-cache")
    b = run(tmp_path, "sglang-0.5.15.post1-eagle3.log", "--tp", "2", NCCL_DEBUG="INFO")
    found = compare(load_run(a.path), load_run(b.path))

    assert found.flags == ("--tp: 1 -> 2", "--disable-radix-cache only in A")
    assert found.environment == ("NCCL_DEBUG INFO only in B",)
    assert found.parts_after == "graphs:draft:decode"
    assert (found.a.outcome, found.b.outcome) == ("crashed", "stopped")
    assert "graphs:draft:extend" in str(found)


def test_a_run_compared_with_itself_has_no_difference(tmp_path: Path):
    a = run(tmp_path, "sglang-0.5.15.post1-eagle3.log", "--tp", "1")
    found = compare(load_run(a.path), load_run(a.path))

    assert (found.flags, found.environment, found.line_a, found.line_b) == ((), (), "", "")


def test_two_launches_that_only_differ_in_their_draft_part_nowhere_in_the_log():
    good, broken = (load_run(LOGS / f"sglang-0.5.15.post1-h200-{draft}.log") for draft in ("good", "no-layer"))

    assert "their logs are alike up to the end" in str(compare(good, broken))


def test_a_run_folder_gives_its_verdict_and_the_true_beginning(tmp_path: Path):
    folder = RunFolder(tmp_path)
    folder.log_path.write_bytes((LOGS / "sglang-0.5.15.post1-h200-no-layer.log").read_bytes())
    first = load_run(tmp_path).lines[0].at
    folder.write_launch(["python"], {}, engine="sglang", version="0.5.15.post1")
    launch = folder.read_launch() | {"at": first - 24.0}
    folder.write_document("launch.json", launch)
    folder.write_document("verdict.json", {"words": "accept length 1.10 over 440 rounds\n1 of 4 answers"})

    run = load_run(tmp_path)

    assert run.phases["launch"] == pytest.approx(24 + 3, abs=2)
    assert "   accept length 1.10 over 440 rounds" in str(compare(run, run)).splitlines()
