"""Figures of a server: exact on arrivals that are given, and over real sockets what the server itself recorded."""

import json
import os
import time
import urllib.request
from itertools import pairwise
from statistics import mean, median

import psutil
import pytest

from eyas.bench.served.figures import figures_of, percentile
from eyas.bench.served.load import MOST_BUSY, Arm, Asked, ClientLoad, ServedTurn, hold
from eyas.bench.served.questions import Question
from eyas.client.server_api import GenerationOptions, RequestCounts, ServerAnswer
from eyas.contract.engines.server_at import server_at
from eyas.decode.accept_length import Acceptance
from timed import timed

IDLE = ClientLoad(busy=0.1, late_s=0.0)


def asked(name: str, times: list[float], tokens: list[int], accepted: list[int], prompt: int = 100) -> Asked:
    answer = ServerAnswer(
        text="",
        output_ids=tuple(range(sum(tokens))),
        num_prompt_tokens=prompt,
        num_output_tokens=sum(tokens),
        chunk_times_s=tuple(times),
        chunk_tokens=tuple(tokens),
        total_s=times[-1] + 0.5,
        finish_reason="length",
        counts=RequestCounts(acceptance=Acceptance.of_rounds(accepted, 3)),
    )
    return Asked(id=name, set=name, turn=0, answer=answer)


def test_every_figure_of_given_arrivals_is_exact():
    one = asked("a", [1.0, 1.5, 2.0], [1, 3, 2], [2, 1])
    two = asked("b", [3.0, 4.0], [1, 1], [0], prompt=600)
    turns = [ServedTurn(seconds=s, asked=(one, two), client=IDLE) for s in (4.0, 2.0, 8.0)]

    found = figures_of(turns, None, 3, seed=0)

    assert (found.tokens_per_s, found.tokens_per_s_low, found.tokens_per_s_high) == (2.0, 1.0, 4.0)
    assert found.tokens_per_s_per_user == pytest.approx(mean([6 / 2.5, 2 / 4.5]), rel=1e-12)
    assert found.ttft is not None
    assert found.tpot is not None
    assert found.itl is not None
    assert found.accepted is not None
    assert (found.ttft.mean, found.ttft.percentiles[50]) == (2.0, 2.0)
    assert found.tpot.mean == pytest.approx(mean([1.0 / 5, 1.0]), rel=1e-12)
    assert found.itl.mean == pytest.approx(mean([0.5, 0.5, 1.0]))
    assert found.itl.percentiles[99] == 1.0
    assert found.accepted.accept_length == (3 + 2 + 1) / 3
    assert found.accepted.request_mean == mean([2.5, 1.0])
    assert found.accepted.per_position == (2 / 3, 1 / 3, 0.0)
    assert {name: part.accept_length for name, part in found.by_set.items()} == {"a": 2.5, "b": 1.0}
    assert set(found.by_context) == {"0 - 511", "512 - 1023"}
    assert found.ttft.low <= found.ttft.mean <= found.ttft.high


def test_a_percentile_lies_between_its_neighbours():
    assert [percentile([1.0, 2.0, 4.0], share) for share in (0, 50, 75, 100)] == [1.0, 2.0, 3.0, 4.0]


def test_answers_that_repeat_themselves_are_counted_apart():
    straight = asked("a", [1.0, 2.0], [1, 40], [1] * 20)
    looping = Asked(
        id="b",
        set="b",
        turn=0,
        answer=ServerAnswer(
            **{
                **{name: getattr(straight.answer, name) for name in straight.answer.__slots__},
                "output_ids": (1, 2, 3) * 14,
                "counts": RequestCounts(acceptance=Acceptance.of_rounds([3] * 10, 3)),
            }
        ),
    )

    found = figures_of([ServedTurn(seconds=1.0, asked=(straight, looping), client=IDLE)], None, 3, seed=0)

    assert found.num_repetitive == 1
    assert found.accepted is not None
    assert found.accepted_straight is not None
    assert (found.accepted.accept_length, found.accepted_straight.accept_length) == (80 / 30, 2.0)


def questions(number: int) -> list[Question]:
    return [Question(id=str(n), set="s", ids=(n + 1, 2, 3)) for n in range(number)]


def test_answers_too_large_to_wait_are_read_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("eyas.bench.served.load._MOST_KEPT_BYTES", 3000)
    with timed(ttft_s=0.002, round_s=0.001, accepted=[1, 0, 2]) as url:
        turn = hold(Arm("server", server_at(url)), questions(5), GenerationOptions(max_new_tokens=20), 2, 60)

    assert [(one.id, one.num_tokens, len(one.answer.output_ids or ())) for one in turn.asked] == [
        (str(n), 20, 20) for n in range(5)
    ]


def test_latencies_are_those_that_the_server_recorded():
    """Within 1 %, and what the client itself says that it was late by."""
    with timed(ttft_s=0.25, round_s=0.02, accepted=[1, 0, 2]) as url:
        turn = hold(Arm("server", server_at(url)), questions(8), GenerationOptions(max_new_tokens=60), 4, 60)
        sent = json.load(urllib.request.urlopen(f"{url}/sent"))

    found = figures_of([turn], None, 3, seed=0)
    assert found.ttft is not None
    assert found.tpot is not None
    assert found.itl is not None
    first = mean(times[1] - times[0] for times in sent)
    each = mean((times[-1] - times[1]) / 59 for times in sent)
    gap = mean(b - a for times in sent for a, b in pairwise(times[1:]))
    late = turn.client.late_s
    assert found.ttft.mean == pytest.approx(first, rel=0.01, abs=late)
    assert found.tpot.mean == pytest.approx(each, rel=0.01, abs=late / 59)
    assert found.itl.mean == pytest.approx(gap, rel=0.01, abs=late / 25)
    assert found.num_tokens == 8 * 60
    whole = max(times[-1] for times in sent) - min(times[0] for times in sent)
    assert found.tokens_per_s == pytest.approx(480 / whole, rel=0.01 + late / whole)


def keeps_up(num_streams: int, tokens: int, round_s: float, least_s: float) -> list[tuple[float, ClientLoad]]:
    """Tokens per second, one token an event, and the client's load, of each turn until `least_s` are over."""
    with timed(ttft_s=0.05, round_s=round_s) as url:
        arm, found, end = Arm("server", server_at(url)), [], time.monotonic() + least_s
        while not found or time.monotonic() < end:
            turn = hold(arm, questions(num_streams), GenerationOptions(max_new_tokens=tokens), num_streams, 600)
            assert all(one.num_tokens == tokens for one in turn.asked)
            found.append((num_streams * tokens / turn.seconds, turn.client))
        return found


def test_many_streams_are_read_while_they_arrive():
    [(speed, client)] = keeps_up(64, 100, 0.01, 0)

    assert speed > 64 * 100 / 3, "a second of tokens, on however busy a machine"
    assert client.busy < 0.9


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_64_streams_of_20_000_tokens_a_second_are_kept_up_with():
    """For EYAS_SOAK_SECONDS (60): no drift, no leak. One process makes the tokens, ours reads them, on two cores."""
    keeps_up(64, 1000, 64 / 24_000, 0)
    before = psutil.Process().memory_info().rss

    found = keeps_up(64, 1000, 64 / 24_000, float(os.environ.get("EYAS_SOAK_SECONDS", "60")))

    speeds, quarter = [speed for speed, _ in found], max(1, len(found) // 4)
    print(f"{len(found)} turns, {min(speeds):.0f} - {max(speeds):.0f} tok/s, busy {max(c.busy for _, c in found):.0%}")
    assert median(speeds) >= 20_000
    assert median(client.busy for _, client in found) < MOST_BUSY
    assert median(speeds[-quarter:]) > 0.9 * median(speeds[:quarter])
    assert psutil.Process().memory_info().rss - before < 64 << 20
