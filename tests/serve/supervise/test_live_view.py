"""What people see: plain lines, the picture, the textfile."""

import io
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from eyas.cli.output import print_json
from eyas.cli.server_view import server_view
from eyas.cli.terminal import Terminal
from eyas.serve.facts.state import Event, RankView
from eyas.serve.supervise.views import PlainView, RichView, final_text, head_line, lines_of, textfile_of
from eyas.talk import Silent, seconds
from fake_world import drive, gpu
from scenario_worlds import CAPTURE, EAGLE3, SGLANG, ready, sglang_world


def stalled():
    world = sglang_world(cpu=0.0)
    end = world.replay(EAGLE3, until=b"Capture draft decode CUDA graph end")
    world.stack_frames = lambda second: CAPTURE
    return drive(world, *SGLANG, until=end + 130)


def loading():
    world = sglang_world()
    end = world.replay(EAGLE3, until=b"Load weight end")
    world.at(end, gpus=gpu(30, 50))
    world.log(end + 1, b"\rMulti-thread loading shards:  25%| | 16/64 [02:00<06:00, 7.5s/it]")
    return drive(world, *SGLANG, until=end + 5)


def test_the_head_line_names_state_phase_progress_and_time_left():
    text = head_line(loading().last)

    assert text.startswith("starting: loading weights of the target 16/64 shards")
    assert "left" in text


def test_the_picture_has_a_row_per_phase_a_bar_the_ranks_and_the_gpu():
    run = loading()
    lines = lines_of(run.last, run.supervisor.phase_rows())

    assert any("█████░" in line and "loading weights of the target" in line for line in lines)
    assert any("TP0[S]" in line for line in lines)
    assert any("0: 50 %, 30.0 GB of 143.0 GB" in line for line in lines)


def test_a_stall_is_told_with_stacks_evidence_and_things_to_try():
    text = final_text(stalled().last)

    assert "stalled[graph-capture]" in text
    assert "two samples of stacks agree" in text
    assert "capture_one_batch_size" in text
    assert "= try 1:" in text


def test_plain_lines_tell_each_state_and_phase_once():
    said: list[str] = []
    view = PlainView(said.append)
    world = sglang_world()
    end = ready(world)
    for event in drive(world, *SGLANG, until=end + 3).events:
        view.event(event)

    assert sum("  ready: " in line for line in said) == 1
    assert sum("capturing CUDA graphs of the draft (decode)" in line and "phase:" in line for line in said) == 1


def test_json_events_are_one_object_a_line(capsys):
    view = server_view(Silent(), json=True)
    for event in stalled().events:
        view.event(event)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert {line["kind"] for line in lines} >= {"phase", "state", "stacks"}
    assert lines[-1]["state"] == "stalled"


def test_the_live_view_draws_on_a_terminal():
    from rich.console import Console

    stream = io.StringIO()
    run = loading()
    view = RichView(Console(file=stream, force_terminal=True, width=120))
    view.show(run.last, run.supervisor.phase_rows())
    view.event(run.events[-1])
    view.close()

    assert "loading weights of the target" in stream.getvalue()


def test_the_textfile_has_one_state_that_holds():
    text = textfile_of(loading().last)

    assert text.count("} 1\n") == 2  # the state and the phase
    assert 'phase="weights",role="target"' in text
    assert text.endswith("\n")


def test_seconds_are_words():
    assert [seconds(v) for v in (None, 4.4, 127, 3720, 7260)] == ["?", "4 s", "2:07 min", "62:00 min", "2:01 h"]


FOREIGN = "\x1b]0;owned\x07\x1b]52;c;cHduZWQ=\x07\x1bc\x9b2J\u202e\r"


def foreign_snapshot():
    """What a hostile server can say of itself, everywhere where a snapshot has room for it."""
    last = loading().last
    texts = {"engine": FOREIGN, "version": FOREIGN, "reason": FOREIGN, "last_line": FOREIGN}
    ranks = (RankView(label=FOREIGN, pid=1, status="S"),)
    return replace(last, **texts, warnings=(FOREIGN,), ranks=ranks, endpoints={"/health": FOREIGN})


def test_no_view_hands_a_terminal_what_it_would_obey(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """OSC 0 sets the title, OSC 52 the clipboard, ESC c resets: from a server's /version or a line of its log."""
    from rich.console import Console

    snapshot = foreign_snapshot()
    event = Event(at=0.0, elapsed_s=0.0, kind="note", state=snapshot.state, text=FOREIGN, data={"line": FOREIGN})
    picture = io.StringIO()
    rich = RichView(Console(file=picture, force_terminal=True, width=200))
    for view in (rich, PlainView(Terminal().line), server_view(Silent(), json=True)):
        view.show(snapshot, ())
        view.event(event)
        view.close()
    print_json(snapshot.as_document())
    shown = capfd.readouterr()

    for text in (picture.getvalue(), shown.out, shown.err, textfile_of(snapshot)):
        assert "\x1b]" not in text
        assert "\x1bc" not in text
        assert not any(char in text for char in "\x07\x9b\u202e")
        assert "owned" in text or "engine=" in text


def test_a_picture_has_no_thread_that_could_die_with_a_traceback():
    from rich.console import Console

    before = threading.active_count()
    view = RichView(Console(file=io.StringIO(), force_terminal=True))

    assert threading.active_count() == before
    view.close()
