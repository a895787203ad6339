"""The damage matrix: each way to spoil a draft, and the verdict of each engine version on it."""

import pytest

import damage_matrix
from eyas.contract.check.check import check
from eyas.contract.engines.registry import parse_engine
from eyas.contract.files.read_checkpoint import read_checkpoint, read_target_checkpoint

ENGINES = (
    "sglang==0.5.9",
    "sglang==0.5.12",
    "sglang==0.5.15.post1",
    "sglang==0.5.17",
    "sglang==0.5.23",
    "vllm==0.25.1",
    "vllm==0.33.0",
)
# ok; ~ mild, ! severe, X fatal damage in silence; C crash; R refused. One letter per engine, in the order above.
OK, MILD, SEVERE, FATAL, CRASH = (letter * 7 for letter in "o~!XC")
EXPECTED = {
    "intact": OK,
    "intact-layers0": "Xoooooo",
    "intact-speculators": "RRRRRoo",
    "missing-fc": FATAL,
    **{f"missing-{part}": SEVERE for part in ("q", "k", "v", "o", "gate", "up", "down")},
    **{f"missing-{n}": SEVERE for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm", "norm")},
    "missing-lm_head": FATAL,
    "missing-d2t": FATAL,
    "missing-t2d": OK,
    "d2t-absolute": FATAL,
    "d2t-shifted": FATAL,
    "d2t-arange": FATAL,
    "d2t-zeros": FATAL,
    "extra-fc-bias": SEVERE,
    "extra-q-bias": SEVERE,
    "extra-o-bias": SEVERE,
    "extra-down-bias": SEVERE,
    "declared-q-bias": SEVERE,
    "embed-random": OK,  # only --deep can tell (test_deep.py)
    "aux-plus-one": "~~~~~oo",
    "aux-minus-one": "ooooo~~",
    "aux-unsorted": SEVERE,
    "aux-two": CRASH,
    "aux-top-level": OK,
    "aux-none": OK,
    "residual-true": "!!!!!oo",
    "residual-absent-speculators": "RRRRRoo",
    "theta-wrong": OK,  # only numbers can tell
    "rope-absent": OK,
    "rope-new-spelling": "~oooooo",
    "draft-vocab-missing": CRASH,
    "draft-vocab-null": CRASH,
    "arch-llama": "CCCCCoo",
    "arch-qwen3": "CCCCC!!",
    "arch-angelslim": "RRRRRoo",
    "arch-unknown": "RRRRRRR",
    "arch-missing": "RRRRRRR",
    "model-type-missing": "RRRRRRR",
    "model-type-unknown": "RRRRRRR",
    "tie-true": "XXXXXoo",
    "input-norm-without-flag": SEVERE,
    "input-norm-with-flag": "!!!oooo",
    "input-norm-flag-only": SEVERE,
    "eagle-3.1": "!oooooo",
    "fc-norm-without-flag": "!!!!!CC",
    "aux-norm-names": "!ooooCC",
    "qk-norm": "!!!!!CC",
    "qwen3-class": "RRRRRoo",
    "unknown-tensor": "!!!!!CC",
    "model-prefix": "oooooCC",
    "model-prefix-head": "XXXXXCC",
    "long-q": SEVERE,
    "long-gate": SEVERE,
    "long-down": SEVERE,
    "short-q": CRASH,
    "short-gate": "!!!!!CC",
    "short-down": "!!!!!CC",
    "wide-q": CRASH,
    "fc-two-states": CRASH,
    "head-short": CRASH,
    "two-layers-vllm": "C!!!!oo",
    "two-layers-sglang": "Coooo!!",
    "layers-key-two": "CXXXXXX",
    "fc-fp8-with-scale": "XXXXXCC",
    "all-fp32": OK,
    "activation-gelu": CRASH,
    "rotary-buffer": OK,
}
LETTERS = {"ok": "o", "crash": "C", "refuses": "R", "mild": "~", "severe": "!", "fatal": "X"}


def test_every_row_has_an_expectation():
    assert set(EXPECTED) == set(damage_matrix.ROWS)


@pytest.mark.parametrize("row", list(damage_matrix.ROWS))
def test_each_engine_version_gets_its_verdict(row, tmp_path):
    draft = read_checkpoint(damage_matrix.write(damage_matrix.build(row), tmp_path / "draft"))
    target = read_target_checkpoint(damage_matrix.write_target(tmp_path / "target"))

    report = check(draft, target, [parse_engine(e) for e in ENGINES])

    found = "".join(LETTERS[ledger.severity or ledger.verdict] for ledger in report.ledgers.values())
    assert found == EXPECTED[row], {k: [r.diagnostic.what for r in v.reasons] for k, v in report.ledgers.items()}


@pytest.mark.parametrize("row", [r for r, e in EXPECTED.items() if e != OK])
def test_a_damaged_row_is_a_finding_with_a_way_out_for_every_engine_it_hurts(row, tmp_path):
    draft = read_checkpoint(damage_matrix.write(damage_matrix.build(row), tmp_path / "draft"))
    target = read_target_checkpoint(damage_matrix.write_target(tmp_path / "target"))

    report = check(draft, target, [parse_engine(e) for e in ENGINES])

    for label, ledger in report.ledgers.items():
        if ledger.verdict != "ok":
            once = ("draft-vocab-size-missing", "layers-overstated")  # said once for all engines
            of_all = [f for f in report.findings if f.code in once]
            mine = of_all or [f for f in report.findings if f.engine == label and f.severity != "note"]
            assert mine, label
            assert all(f.advice and f.why and f.where for f in mine)


def test_the_mission_row_names_the_ten_tensors_that_are_dropped(tmp_path):
    draft = read_checkpoint(damage_matrix.write(damage_matrix.build("intact-layers0"), tmp_path / "draft"))

    report = check(draft, None, [parse_engine("sglang==0.5.9")])

    ledger = report.ledgers["sglang==0.5.9"]
    assert len(ledger.dropped) == 10
    assert all(name.startswith("layers.0.") for name in ledger.dropped)
    assert len(ledger.unfilled) == 7
    (finding,) = [f for f in report.findings if f.code == "parameters-unfilled"]
    assert "eyas convert" in finding.advice
    assert "--to sglang" in finding.advice
