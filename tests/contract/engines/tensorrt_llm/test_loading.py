"""TensorRT-LLM's verdict on each way to spoil a draft, and on public drafts."""

import json
from pathlib import Path

import pytest

import damage_matrix
from cases_builder import write_case
from eyas.contract.check.check import check
from eyas.contract.engines.registry import EngineVersionUnknown, parse_engine
from eyas.contract.engines.version import at_least
from eyas.contract.files.read_checkpoint import read_checkpoint, read_target_checkpoint

VERSIONS = ("1.2.0rc2", "1.2.0", "1.3.0rc1", "1.3.0rc2", "1.3.0rc11", "1.3.0rc27")
# o ok; ~ mild, ! severe, X fatal damage in silence; C crash; R refused. One letter per version, in the order above.
OK, SEVERE, FATAL, CRASH, REFUSED = (letter * 6 for letter in "o!XCR")
# the loader of 1.2.0rc2 looks every tensor up
LOST, LOST_WHOLE = "C!!!!!", "CXXXXX"
EXPECTED = {
    "intact": OK,
    "intact-layers0": "CCCooo",
    "intact-speculators": REFUSED,
    "missing-fc": LOST_WHOLE,
    **{f"missing-{part}": CRASH for part in ("q", "k", "v", "gate", "up")},
    **{f"missing-{part}": LOST for part in ("o", "down")},
    **{f"missing-{n}": LOST for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm", "norm")},
    "missing-lm_head": FATAL,
    "missing-d2t": CRASH,
    "missing-t2d": OK,
    **{f"d2t-{fault}": FATAL for fault in ("absolute", "shifted", "arange", "zeros")},
    **{f"extra-{part}-bias": SEVERE for part in ("fc", "q", "o", "down")},
    "declared-q-bias": CRASH,
    "embed-random": OK,
    # the launch says what is tapped, never the draft
    **{f"aux-{how}": OK for how in ("plus-one", "minus-one", "top-level", "none")},
    "aux-unsorted": SEVERE,
    "aux-two": CRASH,
    "residual-true": SEVERE,
    "residual-absent-speculators": REFUSED,
    "theta-wrong": OK,
    "rope-absent": OK,
    "rope-new-spelling": "~~~~~o",
    "draft-vocab-missing": CRASH,
    "draft-vocab-null": CRASH,
    # which class is named does not matter
    **{f"arch-{name}": OK for name in ("llama", "qwen3", "angelslim", "unknown")},
    "arch-missing": CRASH,
    "model-type-missing": REFUSED,
    "model-type-unknown": REFUSED,
    "tie-true": CRASH,
    "input-norm-without-flag": SEVERE,
    "input-norm-with-flag": SEVERE,
    "input-norm-flag-only": SEVERE,
    "eagle-3.1": "!!!!!o",
    "fc-norm-without-flag": SEVERE,
    "aux-norm-names": SEVERE,
    "qk-norm": SEVERE,
    "qwen3-class": "CCC!!!",
    "unknown-tensor": SEVERE,
    "model-prefix": LOST_WHOLE,
    "model-prefix-head": LOST_WHOLE,
    **dict.fromkeys(("long-q", "long-gate", "long-down", "short-q", "short-gate", "short-down", "wide-q"), CRASH),
    "fc-two-states": CRASH,
    "head-short": CRASH,
    "two-layers-vllm": "CCC!!!",
    "two-layers-sglang": "CCCooo",
    "layers-key-two": CRASH,
    "fc-fp8-with-scale": FATAL,
    "all-fp32": OK,
    "activation-gelu": FATAL,
    "rotary-buffer": OK,
}
LETTERS = {"ok": "o", "crash": "C", "refuses": "R", "mild": "~", "severe": "!", "fatal": "X"}
SHARED = Path(__file__).resolve().parents[5] / "shared" / "cases"


def _report(draft, target, versions=VERSIONS):
    engines = [parse_engine(f"tensorrt-llm=={v}") for v in versions]
    return check(read_checkpoint(draft), read_target_checkpoint(target), engines)


def _row(draft, folder, versions=VERSIONS):
    written = damage_matrix.write(draft, folder / "draft")
    return _report(written, damage_matrix.write_target(folder / "target"), versions)


def test_every_row_has_an_expectation():
    assert set(EXPECTED) == set(damage_matrix.ROWS)


@pytest.mark.parametrize("row", list(damage_matrix.ROWS))
def test_each_version_gets_its_verdict(row, tmp_path):
    report = _row(damage_matrix.build(row), tmp_path)

    found = "".join(LETTERS[ledger.severity or ledger.verdict] for ledger in report.ledgers.values())
    assert found == EXPECTED[row], {k: [r.diagnostic.what for r in v.reasons] for k, v in report.ledgers.items()}
    for label, ledger in report.ledgers.items():
        if ledger.verdict != "ok":
            of_all = [f for f in report.findings if f.code == "draft-vocab-size-missing"]
            mine = of_all or [f for f in report.findings if f.engine == label and f.severity != "note"]
            assert mine
            assert all(f.advice and f.why and f.where for f in mine)


@pytest.mark.parametrize(
    ("case", "since"),
    [
        ("a01-yuhuili-llama31-8b", "1.2.0rc2"),
        ("a07-aqmedai-kimi-k2", "1.2.0rc2"),
        ("b02-modelopt-qwen3-235b-layers0", "1.3.0rc2"),
        ("a13-lightseek-kimi-k26-31-mla", "1.3.0rc18"),
    ],
)
def test_a_sound_public_draft_is_served_from_the_release_that_has_what_it_needs(case, since, tmp_path):
    if not SHARED.is_dir():
        pytest.skip("the shared folder of public drafts is not beside the repository")
    known = json.loads((SHARED / f"{case}.json").read_text())
    draft, target = write_case(known, tmp_path)

    report = _report(draft, target, ("1.2.0rc2", "1.2.0rc4", "1.3.0rc2", "1.3.0rc11", "1.3.0rc27", since))

    for label, ledger in report.ledgers.items():
        is_new_enough = at_least(parse_engine(label).version, since)
        assert (ledger.verdict == "ok") == is_new_enough, (label, [r.diagnostic.what for r in ledger.reasons])
    assert list(report.ledgers[f"tensorrt-llm=={since}"].aux) == known["trained_aux"]["boundaries"]


def test_all_that_the_loader_stumbles_on_is_named_at_once(tmp_path):
    draft = damage_matrix.healthy().drop("midlayer.self_attn.k_proj.weight").drop("d2t")
    draft.set(tie_word_embeddings=True, attention_bias=True)

    (ledger,) = _row(draft, tmp_path, ["1.3.0rc27"]).ledgers.values()

    assert ledger.verdict == "crash"
    assert {r.code for r in ledger.reasons if r.verdict == "crash"} == {"loader-asserts", "head-tied"}
    (asserted,) = [r.diagnostic for r in ledger.reasons if r.code == "loader-asserts"]
    assert set(asserted.items) == {
        "model.midlayer.self_attn.qkv_proj.weight",
        "model.midlayer.self_attn.qkv_proj.bias",
        "model.midlayer.self_attn.o_proj.bias",
        "model.d2t",
    }


def test_a_head_under_another_name_is_neither_loaded_nor_borrowed(tmp_path):
    draft = damage_matrix.healthy()
    dtype, shape = draft.tensors["lm_head.weight"]
    draft.drop("lm_head.weight").add("model.lm_head.weight", *shape, dtype=dtype)

    (ledger,) = _row(draft, tmp_path, ["1.3.0rc27"]).ledgers.values()

    assert (ledger.verdict, ledger.severity) == ("silent-damage", "fatal")
    assert ledger.unfilled == ("lm_head.weight",)


def test_boundaries_that_a_set_of_layers_cannot_say_are_a_finding(tmp_path):
    draft = damage_matrix.healthy()
    draft.config.pop("eagle_config", None)
    draft.set(eagle_aux_hidden_state_layer_ids=[0, 15, 27])

    report = _row(draft, tmp_path, ["1.3.0rc27"])

    assert report.ledgers["tensorrt-llm==1.3.0rc27"].verdict == "crash"
    assert {"aux-count", "aux-layers-differ"} & {f.code for f in report.findings if f.engine}


@pytest.mark.parametrize(
    ("architecture", "version", "verdict"),
    [
        ("Qwen3MoeForCausalLM", "1.2.0rc2", "ok"),
        ("NemotronHForCausalLM", "1.3.0rc2", "crash"),
        ("NemotronHForCausalLM", "1.3.0rc11", "ok"),
        ("Gemma3ForCausalLM", "1.3.0rc27", "crash"),
        ("SomethingNewForCausalLM", "1.3.0rc27", "ok"),
    ],
)
def test_a_target_that_takes_no_draft_is_told(architecture, version, verdict, tmp_path):
    draft = damage_matrix.write(damage_matrix.healthy(), tmp_path / "draft")
    target = damage_matrix.write_target(tmp_path / "target")
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))

    report = _report(draft, target, [version])

    assert next(iter(report.ledgers.values())).verdict == verdict
    launch = report.launch[f"tensorrt-llm=={version}"]
    assert any("can be tapped is not known" in n for n in launch.notes) == (architecture == "SomethingNewForCausalLM")


@pytest.mark.parametrize("version", ["1.1.0rc3", "1.2.0rc1", "1.4.0", "1.4.0rc4"])
def test_a_version_that_was_not_read_is_refused(version):
    with pytest.raises(EngineVersionUnknown, match="no load rules"):
        parse_engine(f"tensorrt-llm=={version}")


@pytest.mark.parametrize(("version", "grade"), [("1.2.0rc2", "read"), ("1.2.1", "inferred"), ("1.3.0rc27", "read")])
def test_no_version_is_claimed_to_have_run(version, grade):
    assert parse_engine(f"tensorrt_llm=={version}").grade == grade
