"""`eyas bench URL` against a server of known speed and acceptance: figures, guards, resuming, what is printed."""

import json
from pathlib import Path
from typing import Any

import pytest

from eyas.cli.app import main
from stub_server import Script, StubServer
from timed import timed

QUESTIONS = [
    {"question_id": 1, "category": "writing", "turns": ["a b c", "and d"]},
    {"question_id": 2, "category": "math", "turns": ["one plus one", "and two"]},
    {"set": "chat", "messages": [{"role": "user", "content": "hello"}]},
]
ACCEPTED = [2, 0, 1, 0, 3, 0]  # 6 rounds of 12 tokens
QUICK = {"ttft_s": 0.004, "round_s": 0.001}


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "question.jsonl"
    path.write_text("".join(json.dumps(q) + "\n" for q in QUESTIONS))
    return path


def measured(tmp_path: Path, *arguments: object) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "bench.json"
    code = main(["bench", *map(str, arguments), "--out", str(out), "--max-new-tokens", "13"])
    return code, json.loads(out.read_text()) if out.exists() else {}


def test_acceptance_is_what_the_server_did_whole_by_set_and_by_context(tmp_path: Path, questions: Path):
    with timed(accepted=ACCEPTED, **QUICK) as url:
        code, document = measured(tmp_path, url, "--data", questions, "--concurrency", "1,3", "--repeats", 2)

    assert code == 0
    for point in document["points"]:
        accepted = point["figures"]["server"]["accepted"]
        assert (accepted["accept_length"], accepted["request_mean"], accepted["source"]) == (2.0, 2.0, "answers")
        assert accepted["per_position"] == [3 / 6, 2 / 6, 1 / 6]
        assert accepted["rounds"] == 6 * 5 * 2
        assert {n: p["accept_length"] for n, p in point["figures"]["server"]["by_set"].items()} == {
            "writing": 2.0,
            "math": 2.0,
            "chat": 2.0,
        }
        assert point["figures"]["server"]["num_tokens"] == 13 * 5 * 2
    assert [point["point"]["concurrency"] for point in document["points"]] == [1, 3]
    assert document["problem"] is None
    assert not (tmp_path / "bench.json.turns.jsonl").exists()


def test_every_turn_is_asked_with_the_servers_own_answers_before_it(tmp_path: Path, questions: Path):
    import urllib.request

    with timed(**QUICK) as url:
        measured(tmp_path, url, "--data", questions, "--repeats", 1)
        asked = json.load(urllib.request.urlopen(f"{url}/asked"))

    conversations = [messages for messages in asked if isinstance(messages, list) and isinstance(messages[0], dict)]
    last = next(messages for messages in conversations if len(messages) == 3 and messages[0]["content"] == "a b c")
    assert [m["role"] for m in last] == ["user", "assistant", "user"]
    assert last[1]["content"] == " w" * 13
    assert last[2]["content"] == "and d"


def test_both_arms_get_the_same_and_their_texts_are_compared(
    tmp_path: Path, questions: Path, capsys: pytest.CaptureFixture[str]
):
    with timed(accepted=ACCEPTED, **QUICK) as url, timed(**QUICK) as plain:
        code, document = measured(tmp_path, url, "--baseline", plain, "--data", questions, "--repeats", 2)

    comparison = document["points"][0]["comparison"]
    assert code == 0
    assert (comparison["num_equal"], comparison["num_compared"], comparison["num_equal_baseline"]) == (10, 10, 5)
    assert document["servers"]["baseline"]["url"] == plain
    printed = capsys.readouterr().out
    assert "speedup in total" in printed
    assert "10 of 10 greedy answers are the baseline's" in printed


def test_other_texts_are_said(tmp_path: Path, questions: Path, capsys: pytest.CaptureFixture[str]):
    with timed(accepted=ACCEPTED, shift=5, **QUICK) as url, timed(**QUICK) as plain:
        _, document = measured(tmp_path, url, "--baseline", plain, "--data", questions, "--repeats", 1)

    comparison = document["points"][0]["comparison"]
    assert (comparison["num_equal"], comparison["num_compared"], comparison["first_difference"]) == (0, 3, 0)
    assert any("texts part within the first tokens" in note for note in document["notes"])


def test_a_baseline_that_is_too_slow_is_refused_and_the_record_kept(
    tmp_path: Path, questions: Path, capsys: pytest.CaptureFixture[str]
):
    slow = {"ttft_s": 0.004, "round_s": 0.02}
    with timed(accepted=ACCEPTED, **QUICK) as url, timed(**slow) as plain:
        code, document = measured(tmp_path, url, "--baseline", plain, "--data", questions, "--repeats", 1)

    assert code == 1
    assert "error[bench-baseline-handicapped]" in capsys.readouterr().err
    assert document["problem"]["code"] == "bench-baseline-handicapped"
    assert document["verdict"].startswith("NOT VALID: ")


def test_other_traffic_is_found(tmp_path: Path, questions: Path, capsys: pytest.CaptureFixture[str]):
    with timed(strangers=500, **QUICK) as url:
        code, document = measured(tmp_path, url, "--data", questions, "--repeats", 1)

    assert code == 1
    assert "error[other-traffic]" in capsys.readouterr().err
    assert document["verdict"].startswith("NOT VALID: other requests ran")


def test_simulated_acceptance_is_refused(tmp_path: Path, questions: Path, capsys: pytest.CaptureFixture[str]):
    with timed(accepted=[1], depth=3, **QUICK) as url:
        code, _ = measured(tmp_path, url, "--data", questions, "--repeats", 10)

    assert code == 1
    assert "error[acceptance-simulated]" in capsys.readouterr().err


def test_counters_are_read_where_answers_carry_no_counts(tmp_path: Path, questions: Path):
    with timed(accepted=ACCEPTED, in_answers=False, **QUICK) as url:
        _, document = measured(tmp_path, url, "--data", questions, "--repeats", 2)

    accepted = document["points"][0]["figures"]["server"]["accepted"]
    assert (accepted["accept_length"], accepted["rounds"], accepted["source"]) == (2.0, 60, "counters")
    assert accepted["request_mean"] is None


def test_an_interrupted_run_resumes_after_its_last_turn(
    tmp_path: Path, questions: Path, capsys: pytest.CaptureFixture[str]
):
    journal = tmp_path / "bench.json.turns.jsonl"
    options = ["--data", questions, "--repeats", 3]
    with timed(accepted=ACCEPTED, break_after=12, **QUICK) as url:  # the warm-up, two turns and a bit
        code, _ = measured(tmp_path, url, *options)
        assert code == 3
        assert "HTTP 503" in capsys.readouterr().err
        lines = journal.read_bytes().splitlines(keepends=True)
        assert len(lines) == 3
        journal.write_bytes(b"".join(lines) + lines[-1][: len(lines[-1]) // 2])  # a kill tears the last one

        again, _ = measured(tmp_path, url, *options)

    said = capsys.readouterr().err
    assert again == 3, "the server still refuses"
    assert "resuming after 2 turns" in said
    assert journal.read_bytes() == b"".join(lines)


@pytest.mark.parametrize("damage", ["flip", "shape", "order"])
def test_a_kept_turn_that_is_not_as_it_was_written_is_measured_again(damage: str, tmp_path: Path, questions: Path):
    journal = tmp_path / "bench.json.turns.jsonl"
    options = ["--data", questions, "--repeats", 3]
    with timed(accepted=ACCEPTED, break_after=12, **QUICK) as url:
        measured(tmp_path, url, *options)
        first, *turns = journal.read_text().splitlines(keepends=True)
        turns[1] = {
            "flip": turns[1].replace("0.0", "0.1", 1),
            "shape": turns[1].replace('"chunk_times_s": [', '"chunk_times_s": [{}, ', 1),
            "order": turns[1].replace("repeat 1", "repeat 0"),
        }[damage]
        journal.write_text(first + "".join(turns))

        assert measured(tmp_path, url, *options)[0] == 3

    assert journal.read_text() == first + turns[0]


@pytest.mark.parametrize("line", ['{"turns": ["\\ud800"]}', "[]", "{", '{"turns": [{}, 3]}', '{"messages": 3}'])
def test_questions_that_are_none_are_refused_by_line(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "q.jsonl").write_text(f'{{"turns": ["a"]}}\n{line}\n')
    with timed(**QUICK) as url:
        code, _ = measured(tmp_path, url, "--data", tmp_path / "q.jsonl", "--repeats", 1)

    assert code == 2
    assert "q.jsonl:2" in capsys.readouterr().err


@pytest.mark.parametrize("incremental", [False, True])
def test_an_engines_own_route_and_its_limit_of_requests(incremental: bool, tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt_ids": [n, 2], "response_ids": [3]}) + "\n" for n in range(3)))
    script = Script(engine="sglang", incremental=incremental, accepted=(2, 1, 0, 3))
    with StubServer(script) as server, StubServer(Script(engine="sglang", speculates=False)) as plain:
        arguments = ["--baseline", plain.url, "--data", rows, "--concurrency", "2,64", "--repeats", 1]
        _, document = measured(tmp_path, server.url, *arguments)  # a stub's speed is its own

    assert [point["point"]["concurrency"] for point in document["points"]] == [2, 48]
    assert any("64 became 48 for all" in note and "--max-running-requests" in note for note in document["notes"])
    accepted = document["points"][0]["figures"]["server"]["accepted"]
    assert (accepted["source"], accepted["rounds"] > 0, len(accepted["per_position"])) == ("answers", True, 3)
    assert document["points"][0]["figures"]["baseline"]["accepted"] is None
    assert document["points"][0]["comparison"]["num_equal"] == 3


def test_events_that_arrive_torn_are_put_together(tmp_path: Path, questions: Path):
    with timed(accepted=ACCEPTED, piece=7, **QUICK) as url:
        code, document = measured(tmp_path, url, "--data", questions, "--repeats", 1)

    assert (code, document["points"][0]["figures"]["server"]["accepted"]["accept_length"]) == (0, 2.0)


def test_random_ids_are_answered_to_the_end_and_marked(tmp_path: Path):
    with timed(accepted=ACCEPTED, stop_after=5, **QUICK) as url:
        code, document = measured(tmp_path, url, "--random-tokens", 20, "--max-prompts", 3, "--repeats", 1)

    assert code == 0
    assert document["settings"]["ignore_eos"] is True
    assert any("mean nothing" in note for note in document["notes"])


@pytest.mark.parametrize(
    "url",
    ["1", "/etc/passwd", "", "ftp://x", "http://", "http://[::1", "http://a b", "http://x/\x1b[31m", "http://x:99999"],
)
def test_what_is_not_a_url_is_refused_before_anything_is_asked(url: str, capsys: pytest.CaptureFixture[str]):
    assert main(["bench", url]) == 2
    assert "error[watch-subject-unknown]" in capsys.readouterr().err
    assert main(["bench", "http://127.0.0.1:1", "--baseline", url]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["URL", "--target", "t"], "both were given"),
        ([], "neither a URL nor both --target and --draft"),
        (["URL", "--batch", "4"], "--batch cannot be used here"),
        (["URL", "-k", "1,3"], "-k cannot be used here"),
        (["--target", "t", "--draft", "d", "--concurrency", "4"], "--concurrency cannot be used here"),
        (["--target", "t", "--draft", "d", "--baseline", "http://x"], "--baseline cannot be used here"),
        (["URL", "--random-tokens", "5", "--data", "x.jsonl"], "--data, --random-tokens cannot be used here"),
        (["URL", "--concurrency", "0"], "--concurrency is 0"),
        (["URL", "--temperature", "nan"], "--temperature is nan"),
        (["URL", "--output-length", "1"], "--output-length is 1"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]):
    assert main(["bench", *("http://127.0.0.1:1" if a == "URL" else a for a in arguments)]) == 2
    assert words in capsys.readouterr().err
