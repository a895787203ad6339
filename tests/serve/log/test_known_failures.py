"""Every known failure on a log of its own: real ones shortened, the others in the structure of real logs with the text
that the engine's code has (the row's `source`)."""

import re

import pytest

from eyas.contract.engines.registry import ENGINES
from eyas.serve.facts.evidence import ExitFacts
from eyas.serve.facts.state import Cause
from eyas.serve.log import tables
from eyas.serve.log.log_lines import LineSplitter
from eyas.serve.supervise.crash import CrashReader
from fake_world import LOGS

# These rows have no text: an exit code and the kernel's counters make them (tested in test_crash.py).
TEXTLESS = {"killed-out-of-memory", "killed-from-outside"}
KNOWN = LOGS / "known"
PROCESS = re.compile(rb"(?m)^\([\w.:-]+ pid=\d+\) ")


def cause_of(data: bytes, engine: str, code: int | None = 1, **facts: bool) -> Cause:
    reader = CrashReader(tables.table_for(engine, None))
    splitter = LineSplitter()
    for line in [*splitter.feed(data, 0.0), *splitter.flush(0.0)]:
        reader.feed(line)
    exit_facts = ExitFacts(code=code, num_oom_kills=0)
    return reader.cause(
        exit_facts,
        phase="while starting",
        self_killed=facts.get("self_killed", False),
        core_died=facts.get("core_died", False),
    )


def engine_of(code: str) -> str:
    engines = [name for name in ENGINES if code in {row.code for row in tables.table_for(name, None).failures}]
    if len(engines) == 1:
        return engines[0]
    return "vllm" if b" pid=" in (KNOWN / f"{code}.log").read_bytes() else "sglang"


@pytest.mark.parametrize("code", [row.code for row in tables.known_failures() if row.code not in TEXTLESS])
def test_the_log_leads_to_its_code(code: str):
    cause = cause_of((KNOWN / f"{code}.log").read_bytes(), engine_of(code))

    found = cause.diagnostic
    assert found.code == code
    assert "{" not in found.what + found.why + found.advice.replace('"num_speculative', "")
    assert found.what
    assert found.advice


@pytest.mark.parametrize("code", [p.stem for p in sorted(KNOWN.glob("*.log")) if PROCESS.search(p.read_bytes())])
def test_a_vllm_that_names_no_process_leads_to_the_same_code(code: str):
    """Older releases and some wrappers print the level and the time only."""
    bare = PROCESS.sub(b"", (KNOWN / f"{code}.log").read_bytes())

    assert cause_of(bare, "vllm").diagnostic.code == code


@pytest.mark.parametrize("code", [row.code for row in tables.known_failures() if row.code not in TEXTLESS])
def test_without_its_words_the_log_does_not_lead_to_it(code: str):
    row = tables.failure_of(code)
    text = (KNOWN / f"{code}.log").read_text()
    gone = row.pattern.sub("something else entirely", text)
    if gone == text:  # a pattern over several lines, which carry prefixes in the raw log
        gone = (
            text.replace("Unexpected keyword argument", "something else").replace("502", "200").replace("timed out", "")
        )
        gone = gone.replace("Timeout", "").replace("Bad Gateway", "")
    assert gone != text
    assert cause_of(gone.encode(), engine_of(code)).diagnostic.code != code


def test_there_are_enough_and_each_once():
    codes = [row.code for row in tables.known_failures()]

    assert len(codes) == len(set(codes))
    assert len(codes) >= 25


def test_every_row_says_where_its_text_comes_from():
    assert all(row.source for row in tables.known_failures())


def test_a_healthy_log_holds_none():
    for name in ("sglang-0.5.15.post1-eagle3.log", "vllm-0.25.1-eagle3.log", "vllm-0.25.1-plain.log"):
        reader = CrashReader(tables.table_for(name.split("-")[0], None))
        for line in LineSplitter().feed((LOGS / name).read_bytes(), 0.0):
            reader.feed(line)
        assert not reader.has_evidence, name


def test_groups_are_filled_into_the_words():
    cause = cause_of((KNOWN / "gpu-occupied-vllm.log").read_bytes(), "vllm")

    assert "12.30 of 139.81 GiB are free" in cause.diagnostic.what


def test_every_code_has_a_heading_in_the_documentation():
    docs = LOGS.parents[2] / "docs"
    pages = [docs / "errors.md"]
    text = "\n".join(page.read_text() for page in pages if page.exists())

    assert [row.code for row in tables.known_failures() if f"## {row.code}\n" not in text] == []
