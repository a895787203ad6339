"""Bytes to lines, as engines really print them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.serve.log.log_lines import LineSplitter, parse_bar, parse_line


def split(data: bytes, pieces: list[int] | None = None) -> list[str]:
    splitter = LineSplitter()
    lines = []
    start = 0
    for end in [*(pieces or []), len(data)]:
        lines += splitter.feed(data[start:end], 0.0)
        start = end
    return [line.raw for line in [*lines, *splitter.flush(0.0)]]


def test_a_bar_that_rewrites_its_line_gives_one_line_per_state():
    data = b"\rCapturing batches:   0%| | 0/51 [00:00<?, ?it/s]\rCapturing batches:   2%| | 1/51 [00:01<01:14]\n"

    assert len(split(data)) == 2


def test_the_unended_state_of_a_bar_can_be_seen():
    splitter = LineSplitter()
    list(splitter.feed(b"\rCapturing batches:   4%|x | 2/51 [00:01<00:50, 1.0s/it]", 0.0))

    bar = parse_bar(splitter.pending)

    assert bar is not None
    assert (bar.done, bar.total, bar.eta_s) == (2, 51, 50)


def test_a_log_line_glued_to_a_bar_is_a_line_of_its_own():
    data = b"\rCapturing batches:   2%| | 1/51 [00:01<01:14,  1.49s/it]"
    data += b"[2026-11-29 14:03:35] Capture target prefill CUDA graph end.\n"

    assert split(data)[1] == "[2026-11-29 14:03:35] Capture target prefill CUDA graph end."


def test_a_carriage_return_before_a_newline_ends_one_line_not_two():
    lines = list(LineSplitter().feed(b"one\r\ntwo\r\n", 0.0))

    assert [(line.number, line.raw) for line in lines] == [(1, "one"), (2, "two")]


def test_line_numbers_are_an_editors():
    data = b"first\n\rbar:   0%| | 0/2 [00:00<?]\rbar:  50%| | 1/2 [00:00<00:01]\nthird\n"

    assert [line.number for line in LineSplitter().feed(data, 0.0)] == [1, 2, 2, 3]


def test_sglangs_ranks_are_read():
    line = parse_line("[2026-11-29 14:03:28 DP1 TP0] Load weight begin. avail mem=139.09 GB", number=1, at=0.0)

    assert (line.label, line.message) == ("DP1 TP0", "Load weight begin. avail mem=139.09 GB")


def test_vllms_process_level_and_file_are_taken_off():
    text = '(Worker_TP1 pid=23333) ERROR 11-29 13:40:01 [multiproc_executor.py:953]   File "x.py", line 1'
    line = parse_line(text, number=1, at=0.0)

    assert (line.label, line.pid, line.level) == ("Worker_TP1", 23333, "ERROR")
    assert line.message == '  File "x.py", line 1'


def test_vllms_stamp_without_a_year_gets_the_nearest_one():
    import time

    january = time.mktime((2027, 1, 1, 0, 0, 10, 0, 0, -1))
    line = parse_line("INFO 12-31 23:59:59 [core.py:1] x", number=1, at=january)

    assert line.stamp is not None
    assert abs(line.stamp - january) < 60


@given(st.text(alphabet="ab \n\r", max_size=60), st.lists(st.integers(0, 60), max_size=6))
def test_lines_do_not_depend_on_the_pieces_they_come_in(text: str, cuts: list[int]):
    data = text.encode()
    pieces = sorted(min(cut, len(data)) for cut in cuts)

    assert split(data, pieces) == split(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_taken(data: bytes):
    split(data)


@pytest.mark.parametrize(
    "text",
    [
        'INFO:     127.0.0.1:1 - "GET /?5%|./.[0<0 HTTP/1.1" 404 Not Found',  # float(".") ended eyas, and the server
        "x: 5%| | 1.2.3/51 [00:01<00:50]",
        "x: 5%| | 1/51 [00:01<" + "9" * 400 + "]",
        "x: 5%| | " + "9" * 400 + "/51 [00:01<00:50]",
        "x: 5%| | 1/51 [00:01<" + ":" * 12 + "]",
        "x: ٥%| | ١/51 [00:01<00:٥٠]",
        "[" + "²" * 20 + "%|" * 300,
    ],
)
def test_what_looks_like_a_bar_is_taken_without_harm(text: str):
    bar = parse_bar(text)

    assert bar is None or bar.done >= 0


@pytest.mark.parametrize(
    "text",
    [
        "\r" * 200_000 + "x",
        "\r" * 200_000 + "\n",
        "5%|" * 700 + " [",
        "5%" + "| " * 990,
        "5%|" + " " * 1900 + "[",
        "\x1b[" * 50_000,
        "\x1b[" + "1;" * 50_000,
        "[2026-11-29 14:03:28" + " TP0" * 20_000,
        "(Worker pid=" + "9" * 100_000,
        "INFO 11-29 13:40:01 [" + "x" * 100_000,
        "a.b." * 50_000 + ":",
        "Decode batch" + "#running-req: 1 accept len: 1 gen throughput (token/s): " * 2000,
        "SpecDecoding metrics: Mean acceptance length: " * 5000,
        "SpeculativeConfig  Unexpected keyword " * 5000,
        "Using cache directory: " + "/eagle_head" * 20_000,
        "kill_process_tree called: parent_pid=" * 5000,
        "Exception: " * 20_000,
    ],
)
def test_a_line_takes_no_longer_than_its_bytes(text: str):
    """Every pattern that is applied to foreign lines is linear, or sees a bounded part of the line."""
    from eyas.serve.log.phases import PhaseTracker
    from eyas.serve.log.tables import engine_of_line, table_for
    from eyas.serve.supervise.crash import CrashReader

    table = table_for("unknown", None)
    tracker, reader = PhaseTracker(table, 0.0), CrashReader(table)
    start = time.process_time()
    for prefix in ("", "Traceback (most recent call last):\n"):
        splitter = LineSplitter()
        for line in [*splitter.feed((prefix + text).encode(), 0.0), *splitter.flush(0.0)]:
            tracker.feed(line)
            reader.feed(line)
            engine_of_line(line.message)
            assert len(line.raw) < 20_000
        assert reader.has_evidence in (True, False)

    assert time.process_time() - start < 1.5
