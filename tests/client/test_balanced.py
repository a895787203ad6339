"""Requests over several servers: none is lost, none is answered twice, whatever the servers do."""

import threading
import time
from collections import Counter

import pytest

from eyas.client.address import ServerAddress, ServerRefused, ServerUnreachable
from eyas.client.balanced import AnswersMissing, Patience, Refused, Servers, ServersGone
from eyas.talk import Silent

QUICK = Patience(attempts=3, gone_s=0.6, first_pause_s=0.02, longest_pause_s=0.05)


def servers(*urls: str, is_itself=lambda address: None, **more) -> Servers:
    addresses = tuple(ServerAddress(url=url) for url in urls)
    return Servers(addresses=addresses, is_itself=is_itself, **{"concurrency": 4, "patience": QUICK, **more})


def fault(status: int | None = None) -> ServerRefused:
    error = ServerRefused("HTTP", "there", "told to fail", "look")
    error.status = status
    return error


def gone() -> ServerUnreachable:
    return ServerUnreachable("cannot talk", "there", "refused", "look")


def test_each_item_is_answered_once_and_servers_share_by_speed():
    took = Counter[str]()

    def ask(http, address, item):
        took[address.url] += 1
        time.sleep(0.02 if address.url.endswith("slow") else 0.002)
        return item * 2

    found = list(servers("http://slow", "http://fast").ask_all(range(200), ask, Silent()))

    assert sorted(found) == [(i, 2 * i) for i in range(200)]
    assert took["http://fast"] > 2 * took["http://slow"] > 0


def test_a_dead_servers_work_goes_to_the_other_and_it_is_used_again_when_it_returns():
    dead, took, talk = threading.Event(), Counter[str](), Silent()

    def is_itself(address):
        if address.url.endswith("b") and dead.is_set():
            raise gone()

    def ask(http, address, item):
        took[address.url] += 1
        time.sleep(0.002)
        if address.url.endswith("b") and dead.is_set():
            raise gone()
        if item == 40:
            dead.set()
        if item == 160:
            dead.clear()
        return item

    pool = servers("http://a", "http://b", is_itself=is_itself)
    found = list(pool.ask_all(range(300), ask, talk))

    assert sorted(item for item, _ in found) == list(range(300))
    assert [line.split(" ", 1)[1] for line in talk.lines] == [
        "does not answer; its requests go to the others: refused",
        "answers again",
    ]


@pytest.mark.parametrize("error", [fault(500), fault(429), fault(None), gone()])
def test_a_fault_that_passes_is_survived_in_silence(error: Exception):
    failed, talk = set[int](), Silent()

    def ask(http, address, item):
        if item % 5 == 0 and item not in failed:
            failed.add(item)
            raise error
        return item

    assert len(list(servers("http://a").ask_all(range(60), ask, talk))) == 60
    assert len(failed) == 12
    assert talk.lines == []


def test_a_request_of_its_own_fault_is_handed_back_and_asked_once():
    asked = Counter[int]()

    def ask(http, address, item):
        asked[item] += 1
        if item == 3:
            raise fault(400)
        return item

    found = dict(servers("http://a").ask_all(range(6), ask, Silent()))

    assert found.pop(3) == Refused("HTTP: told to fail")
    assert found == {i: i for i in (0, 1, 2, 4, 5)}
    assert asked[3] == 1


def test_what_no_server_answers_is_named_after_all_others_have_been_answered():
    asked, found = Counter[int](), []

    def ask(http, address, item):
        asked[item] += 1
        if item in (2, 7):
            raise fault(500)
        return item

    with pytest.raises(AnswersMissing, match="2 requests of 20 had no answer") as caught:
        found.extend(servers("http://a", "http://b").ask_all(range(20), ask, Silent()))

    assert len(found) == 18
    assert asked[2] == asked[7] == 3
    assert "each was asked 3 times" in caught.value.why


def test_without_any_server_for_too_long_the_run_ends_and_says_how_much_is_open():
    def away(address):
        raise gone()

    def ask(http, address, item):
        if item >= 10:
            raise gone()
        return item

    got, start = [], time.monotonic()
    with pytest.raises(ServersGone, match=r"of 500 requests are open"):
        for answered in servers("http://a", is_itself=away).ask_all(range(500), ask, Silent()):
            got.append(answered)

    assert 0 < len(got) <= 10
    assert 0.6 <= time.monotonic() - start < 5


def test_a_server_that_was_away_at_the_start_joins():
    up = threading.Event()

    def is_itself(address):
        if address.url.endswith("b") and not up.is_set():
            raise gone()

    took = Counter[str]()

    def ask(http, address, item):
        took[address.url] += 1
        time.sleep(0.002)
        if item == 30:
            up.set()
        return item

    pool = servers("http://a", "http://b", is_itself=is_itself, away=frozenset({"http://b"}))

    assert len(list(pool.ask_all(range(300), ask, Silent()))) == 300
    assert took["http://b"] > 10


def test_our_own_fault_in_a_thread_is_raised_where_the_answers_are_read():
    def ask(http, address, item):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(servers("http://a").ask_all([1], ask, Silent()))


def test_leaving_the_loop_ends_the_threads():
    before = threading.active_count()
    answers = servers("http://a").ask_all(range(1000), lambda http, address, item: time.sleep(0.001), Silent())
    next(answers)
    answers.close()

    end = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before
