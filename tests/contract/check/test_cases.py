"""Public drafts: verdict, losses and tapped layers per engine as expected, and no alarm on the healthy ones."""

import json
from pathlib import Path

import pytest

from cases_builder import matches, write_case
from eyas.contract.check.check import check
from eyas.contract.engines.loading.judge import judge
from eyas.contract.engines.registry import parse_engine
from eyas.contract.files.read_checkpoint import read_checkpoint, read_target_checkpoint
from eyas.contract.reading.read_draft import read_draft
from eyas.contract.spec.target_spec import target_spec
from eyas.diagnostic import SEVERITIES

OWN = Path(__file__).parent / "cases"
SHARED = Path(__file__).resolve().parents[4] / "shared" / "cases"
FILES = [*sorted(OWN.glob("*.json")), *sorted(SHARED.glob("*.json"))]
PAIRS = [
    pytest.param(path, engine, id=f"{path.stem}-{engine}")
    for path in FILES
    for engine in json.loads(path.read_text())["expect"]
]


def test_the_shared_cases_are_beside_the_repository():
    if not SHARED.is_dir():
        pytest.skip("the shared folder of public drafts is not beside the repository; only our own cases are checked")
    assert len(list(SHARED.glob("*.json"))) >= 12


@pytest.mark.parametrize(("path", "engine"), PAIRS)
def test_a_public_draft_gets_the_expected_verdict(path, engine, tmp_path):
    case = json.loads(path.read_text())
    expected = case["expect"][engine]
    draft, target = write_case(case, tmp_path)

    report = check(read_checkpoint(draft), read_target_checkpoint(target), [parse_engine(engine)])

    ledger = report.ledgers[engine]
    assert ledger.verdict in [expected["verdict"], *expected.get("also_accept", [])], ledger.reasons
    if ledger.verdict != expected["verdict"]:
        return
    assert (None if ledger.aux is None else list(ledger.aux)) == expected["aux"]
    if "severity" in expected:
        assert ledger.severity == expected["severity"], ledger.reasons
    for field in ("dropped", "unfilled", "overwritten", "ignored_keys"):
        if field in expected and ledger.starts:
            assert matches(expected[field], getattr(ledger, field)), (field, getattr(ledger, field))


@pytest.mark.parametrize(("path", "engine"), [p for p in PAIRS if p.values[1].startswith("vllm")])
def test_the_v1_runner_gets_its_own_verdict(path, engine, tmp_path):
    case = json.loads(path.read_text())
    expected = case["expect"][engine]
    draft, target = write_case(case, tmp_path)
    checkpoint, spec = read_checkpoint(draft), target_spec(read_target_checkpoint(target))

    ledger = judge(checkpoint, read_draft(checkpoint, spec), spec, parse_engine(engine), "v1")

    verdict = expected.get("verdict_v1", expected["verdict"])
    assert ledger.verdict in [verdict, *expected.get("also_accept", [])], ledger.reasons
    if ledger.verdict == verdict:
        aux = expected.get("aux_v1", expected["aux"])
        assert (None if ledger.aux is None else list(ledger.aux)) == aux


@pytest.mark.parametrize("path", [pytest.param(p, id=p.stem) for p in FILES if json.loads(p.read_text())["healthy"]])
def test_a_healthy_draft_raises_no_alarm_of_its_own(path, tmp_path):
    draft, target = write_case(json.loads(path.read_text()), tmp_path)

    report = check(read_checkpoint(draft), read_target_checkpoint(target), [])

    alarms = [f for f in report.findings if SEVERITIES.index(f.severity) >= SEVERITIES.index("warning")]
    assert alarms == []


@pytest.mark.parametrize(("path", "engine"), PAIRS)
def test_an_engine_that_serves_it_well_raises_no_alarm(path, engine, tmp_path):
    case = json.loads(path.read_text())
    if case["expect"][engine]["verdict"] != "ok" or not case["healthy"]:
        pytest.skip("not a healthy draft on this engine")
    draft, target = write_case(case, tmp_path)

    report = check(read_checkpoint(draft), read_target_checkpoint(target), [parse_engine(engine)])

    found = [f for f in report.findings if f.severity in ("error", "fatal")]
    assert found == []
