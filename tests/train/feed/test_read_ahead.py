import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.extract.source import ExtractedRow, SourceFailed
from eyas.talk import Silent
from eyas.train.feed import read_ahead
from eyas.train.feed.read_ahead import FeedStopped, ReadAhead, RowUnfetchable


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(read_ahead, "_BACKOFF_S", (0.005, 0.02))
    monkeypatch.setattr(read_ahead, "_POLL_S", 0.02)


class Stub:
    """Gives row n as the number n; fails before the rows that `fails` lists, each time it is asked for them."""

    def __init__(self, name="stub", threads=1, rows_at_once=3, fails=(), hold=None) -> None:
        self.name, self.threads, self.rows_at_once = name, threads, rows_at_once
        self.fails, self.hold = Counter(fails), hold
        self.given, self.lock, self.is_ready = Counter(), threading.Lock(), threading.Event()
        self.is_ready.set()

    def fetch(self, numbers: Sequence[int]) -> Iterator[tuple[int, ExtractedRow]]:
        for at in reversed(range(len(numbers))):
            if self.hold is not None:
                self.hold.wait()
            with self.lock:
                is_failing = self.fails[numbers[at]] > 0
                self.fails[numbers[at]] -= 1
                if not is_failing:
                    self.given[numbers[at]] += 1
            if is_failing:
                raise SourceFailed("failed", self.name, "as planned", "")
            yield at, ExtractedRow(number=at, states=np.array([[numbers[at]]]))

    def require_ready(self) -> None:
        if not self.is_ready.is_set():
            raise SourceFailed("dead", self.name, "as planned", "")


def ahead(order, fetchers, most_bytes=100, **options):
    return ReadAhead(
        order, lambda number: 10, fetchers, lambda row: int(row.states[0, 0]), most_bytes=most_bytes, **options
    )


@settings(max_examples=25, deadline=None)
@given(
    order=st.lists(st.integers(0, 9), max_size=40),
    fails=st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=3),
    rows_at_once=st.integers(1, 5),
    most_bytes=st.sampled_from([1, 10, 35, 1000]),
)
def test_whoever_fails_rows_come_once_each_in_order_and_memory_is_bounded(order, fails, rows_at_once, most_bytes):
    stubs = [Stub(str(i), 1 + i, rows_at_once, listed) for i, listed in enumerate(fails)]
    with ahead(order, stubs, most_bytes) as reader:
        assert [reader.take(number) for number in order] == order
    assert sum((stub.given for stub in stubs), Counter()) == Counter(order)
    assert reader.figures.most_held <= max(10, most_bytes)
    assert reader.figures.num_rows == len(order)


def test_a_slow_trainer_holds_the_fetchers_back():
    stub = Stub(rows_at_once=1)
    with ahead(range(50), [stub], most_bytes=40) as reader:
        time.sleep(0.1)
        assert sum(stub.given.values()) == 4
        reader.take(0)
        time.sleep(0.1)
        assert sum(stub.given.values()) == 5


def test_a_dead_one_is_told_once_waited_for_and_told_when_it_is_back():
    dead, talk = Stub("dead", fails=[2]), Silent()
    dead.is_ready.clear()
    with ahead(range(6), [dead], talk=talk) as reader:
        time.sleep(0.1)
        assert [note.split(":")[0] for note in talk.notes] == ["dead stopped giving states"]
        dead.is_ready.set()
        assert [reader.take(number) for number in range(6)] == list(range(6))
    assert "dead gives states again" in talk.lines
    assert len(talk.notes) == 1
    assert reader.figures.fetchers["dead"].num_failures >= 1


def test_others_fetch_the_rows_of_one_that_stays_dead():
    dead, alive = Stub("dead", fails=list(range(9)) * 9), Stub("alive")
    dead.is_ready.clear()
    with ahead(range(9), [dead, alive]) as reader:
        assert [reader.take(number) for number in range(9)] == list(range(9))
    assert sum(alive.given.values()) == 9


def test_a_wish_to_stop_ends_a_wait_for_a_row_that_does_not_come():
    asked, hold = threading.Event(), threading.Event()
    with ahead(range(3), [Stub(hold=hold)], is_asked=asked.is_set) as reader:
        threading.Timer(0.05, asked.set).start()
        begin = time.monotonic()
        with pytest.raises(FeedStopped):
            reader.take(0)
        hold.set()
    assert time.monotonic() - begin < 2


def test_a_row_that_a_living_server_never_gives_is_named():
    with ahead(range(3), [Stub(fails=[1] * 1000)]) as reader:
        assert reader.take(0) == 0
        with pytest.raises(RowUnfetchable, match="the states of row 1 cannot be had"):
            reader.take(1)


def test_another_error_of_a_fetcher_is_raised_where_the_row_is_needed():
    class Broken(Stub):
        def fetch(self, numbers):
            raise OSError("the disk is gone")

    with ahead(range(3), [Broken()]) as reader, pytest.raises(OSError, match="the disk is gone"):
        reader.take(0)


def test_waiting_and_fetching_are_counted():
    hold = threading.Event()
    with ahead(range(3), [Stub(hold=hold)]) as reader:
        threading.Timer(0.1, hold.set).start()
        for number in range(3):
            reader.take(number)
    assert 0.05 < reader.figures.waited_s < 1
    assert 0.05 < reader.figures.fetchers["stub"].busy_s < 1
    assert reader.figures.fetchers["stub"].num_bytes == 30
