"""The first-minute verdict on servers that do well, accept nothing, do not speculate, are stuck or wrong."""

import itertools

import pytest

from eyas.client.address import ServerAddress, open_http
from eyas.contract.engines.registry import server_api
from eyas.decode.accept_length import Acceptance
from eyas.serve.verdict.canary_run import CanaryOptions, RankResult
from eyas.serve.verdict.losslessness import ExpectedAnswer, Losslessness
from eyas.serve.verdict.verdict import Verdict, conclude, first_minute
from eyas.serve.verdict.verdict_findings import VerdictContext
from stub_server import Script, StubServer

OPTIONS = CanaryOptions(min_rounds=200, max_seconds=20, num_draft_tokens=3)
LEDGER = VerdictContext(ledger="10 tensors layers.0.* are dropped", next_command="eyas convert D --to sglang OUT")
ENGINES = ["sglang", "vllm"]


def verdict_on(
    script: Script, context: VerdictContext = LEDGER, *, silence_s: float = 20.0, options: CanaryOptions = OPTIONS
) -> Verdict:
    with StubServer(script) as stub:
        address = ServerAddress(url=stub.url, api=server_api(script.engine), version=script.version, model="stub")
        with open_http(address, timeout_s=silence_s) as http:
            return first_minute(http, address, options, context)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_good_draft_is_proven_with_exact_counts(engine: str):
    verdict = verdict_on(Script(engine=engine, accepted=(3, 1, 2, 0)))

    assert verdict.ok
    assert verdict.acceptance.rounds >= 200
    assert verdict.acceptance.accept_length == pytest.approx(2.5, abs=0.02)
    assert verdict.acceptance.per_position == pytest.approx((0.75, 0.5, 0.25), abs=0.01)
    assert verdict.words.startswith("accept length 2.5")
    assert "speculation works" in verdict.words
    assert verdict.proof.ok
    assert verdict.as_document()["replay"] is None


@pytest.mark.parametrize("engine", ENGINES)
def test_a_dead_draft_is_called_dead_with_the_ledgers_word_and_the_next_step(engine: str):
    verdict = verdict_on(Script(engine=engine, accepted=(0,)))

    assert [f.code for f in verdict.findings if f.severity == "fatal"] == ["nothing-accepted"]
    first = verdict.words.splitlines()[0]
    assert first.startswith(f"accept length 1.00 over {verdict.acceptance.rounds} rounds")
    assert first.endswith(
        "nothing is accepted; the ledger says: 10 tensors layers.0.* are dropped; next: eyas convert D --to sglang OUT"
    )
    assert not verdict.proof.ok


@pytest.mark.parametrize("engine", ENGINES)
def test_a_server_without_speculation_is_found_out(engine: str):
    verdict = verdict_on(Script(engine=engine, speculates=False))

    assert [f.code for f in verdict.findings] == ["not-speculating"]
    assert "decodes plainly" in verdict.findings[0].why


@pytest.mark.parametrize("engine", ENGINES)
def test_a_stuck_rank_is_named_though_the_others_answer(engine: str):
    context = VerdictContext(ranks=(0, 1, 2))
    script = Script(engine=engine, ranks=3, stuck_ranks=frozenset({1}))
    verdict = verdict_on(script, context, silence_s=0.5)

    stuck = [f for f in verdict.findings if f.code == "rank-stuck"]
    assert len(stuck) == 1
    assert "rank 1" in stuck[0].what
    assert [r.error is None for r in verdict.ranks] == [True, False, True]
    assert verdict.ranks[0].acceptance.rounds >= 200


@pytest.mark.parametrize("engine", ENGINES)
def test_each_rank_is_counted_by_itself(engine: str):
    verdict = verdict_on(Script(engine=engine, ranks=2), VerdictContext(ranks=(0, 1)))

    assert verdict.ok
    assert [r.acceptance.rounds >= 200 for r in verdict.ranks] == [True, True]
    assert sum(r.acceptance.rounds for r in verdict.ranks) == verdict.acceptance.rounds


def test_a_server_that_answers_nothing_is_a_verdict_not_an_exception():
    verdict = verdict_on(Script(stuck_ranks=frozenset({0})), silence_s=0.3)

    assert "canary-unanswered" in [f.code for f in verdict.findings]
    assert not verdict.ok


def test_a_server_that_is_gone_is_a_verdict_too():
    address = ServerAddress(url="http://127.0.0.1:9", api=server_api("vllm"))
    with open_http(address, timeout_s=1) as http:
        verdict = first_minute(http, address, OPTIONS, LEDGER)

    assert not verdict.ok
    assert "counters unreadable" in verdict.notes[-1]


@pytest.mark.parametrize("engine", ENGINES)
def test_diverging_answers_are_an_error_when_the_target_disagrees(engine: str):
    expected = (ExpectedAnswer(prompt_ids=(1,), response_ids=tuple(range(50, 70))),)
    script = Script(engine=engine, top_logprobs={50: -0.01, 7: -5.0})
    verdict = verdict_on(script, VerdictContext(expected=expected))

    assert "answers-differ" in [f.code for f in verdict.findings]
    assert verdict.losslessness.num_equal == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_equal_answers_are_reported(engine: str):
    expected = (ExpectedAnswer(prompt_ids=(1,), response_ids=tuple(range(100, 120))),)
    verdict = verdict_on(Script(engine=engine), VerdictContext(expected=expected))

    assert verdict.ok
    assert "1 of 1 answers equal" in verdict.words


def test_looping_answers_are_left_out_where_each_answer_is_counted():
    number = itertools.count()

    def answer(prompt: object) -> list[int]:
        return [7, 8] * 100 if next(number) % 2 else list(range(100, 400))

    verdict = verdict_on(Script(engine="sglang", answer=answer))

    (finding,) = [f for f in verdict.findings if f.code == "canary-loops"]
    assert "left out" in finding.why
    counted = verdict.ranks[0]
    assert 0 < counted.num_looping < counted.num_answers


def test_looping_answers_are_said_to_be_counted_where_only_lifetime_counters_exist():
    verdict = verdict_on(Script(engine="vllm", answer=lambda prompt: [7, 8] * 100))

    (finding,) = [f for f in verdict.findings if f.code == "canary-loops"]
    assert "it is counted" in finding.why


def result(*rounds: int, rank: int | None = None) -> RankResult:
    acceptance = Acceptance.of_rounds(list(rounds) * 100, 3)
    return RankResult(rank=rank, acceptance=acceptance, num_answers=4, num_looping=0, num_tokens=500)


def codes(*results: RankResult) -> list[str]:
    nothing = Losslessness(num_compared=0, num_equal=0, num_tokens=0)
    return [f.code for f in conclude(results, nothing, True, OPTIONS, LEDGER).findings]


def test_the_shape_of_acceptance_tells_plumbing_from_the_recurrent_path():
    assert codes(result(0, 0, 0, 0, 0, 0, 0, 0, 3)) == ["first-position-broken"]
    assert codes(result(1, 1, 1, 1, 1, 1, 1, 1, 2, 0)) == ["later-positions-collapse"]
    assert codes(result(0, 1, 2, 3)) == []


def test_one_dead_rank_is_not_hidden_by_an_average():
    assert codes(result(3, 2, 3, rank=0), result(0, 0, 0, rank=1)) == ["rank-accepts-nothing"]


def test_too_few_rounds_are_said():
    short = RankResult(
        rank=None, acceptance=Acceptance.of_rounds([2, 1], 3), num_answers=1, num_looping=0, num_tokens=6
    )

    assert codes(short) == ["too-few-rounds"]


def test_counters_that_exist_but_do_not_move_are_told_from_plain_decoding():
    silent = RankResult(rank=None, acceptance=Acceptance.none(3), num_answers=4, num_looping=0, num_tokens=500)
    nothing = Losslessness(num_compared=0, num_equal=0, num_tokens=0)
    (finding,) = conclude([silent], nothing, True, OPTIONS, LEDGER).findings

    assert finding.code == "not-speculating"
    assert "did not move" in finding.why


def test_the_document_holds_numbers_words_and_the_place_of_a_prediction():
    document = verdict_on(Script()).as_document()

    assert document["schema"] == "eyas.verdict/1"
    assert document["prediction"] is None
    assert document["rounds"] >= 200
    assert len(document["per_position"]) == 3


def test_a_forced_launch_is_remembered():
    verdict = verdict_on(Script(accepted=(0,)), VerdictContext(forced=("tensor-dropped",)))

    assert "--force tensor-dropped" in verdict.words


def test_expected_answers_of_another_target_are_told_from_a_fault():
    expected = (ExpectedAnswer(prompt_ids=(1,), response_ids=tuple(range(50, 70))),)
    script = Script(top_logprobs={100: -0.01, 50: -6.0})
    verdict = verdict_on(script, VerdictContext(expected=expected))

    assert [f.code for f in verdict.findings] == ["expected-answers-of-another-target"]
    assert verdict.ok
