"""Drafts that people reported about get the right answer, as do others of each kind; no fault hides another."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import damage_matrix
from checked_drafts import ENGINES, TARGET, checked
from damage_matrix import DRAFT_VOCAB, VOCAB, Draft, H, healthy
from eyas.cli.app import main
from eyas.contract.check.check import CheckReport, check
from eyas.contract.engines.registry import parse_engine
from eyas.contract.files.read_checkpoint import read_checkpoint
from eyas.diagnostic import Diagnostic, Edit
from eyas.models.target_folder import hub_snapshot

REPORTS = Path(__file__).resolve().parents[4] / "shared" / "cases" / "reports"


def bad(report: CheckReport) -> list[Diagnostic]:
    return [f for f in report.findings if f.severity in ("error", "fatal")]


def public(name: str, capsys: pytest.CaptureFixture[str], file: str = "draft.header.json") -> dict[str, Any]:
    if not REPORTS.exists():
        pytest.skip("the shared reports are not here")
    folder = REPORTS / name
    asked = [word for label in ENGINES for word in ("--for", label)]
    main(["check", str(folder / file), "--target", str(folder / "target.config.json"), *asked, "--json"])
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_01_the_targets_layer_count_is_one_finding(capsys: pytest.CaptureFixture[str]):
    found = public("01-vicuna-fullvocab-d2t-zeros", capsys)["findings"]

    [layers] = [f for f in found if f["code"] == "layers-overstated"]
    assert layers["do"].startswith('write "num_hidden_layers": 1')
    assert "of the target" in layers["why"]
    assert not [f for f in found if f["code"] in ("tensor-missing", "parameters-unfilled", "d2t-zero")]


def test_01_with_one_layer_the_remedies_lead_through(capsys: pytest.CaptureFixture[str]):
    found = public("01-vicuna-fullvocab-d2t-zeros", capsys, "draft.one-layer.header.json")["findings"]

    does = {f["engine"]: f["do"] for f in found if f["severity"] == "error"}
    assert does["sglang==0.5.23"].startswith('write "architectures": ["LlamaForCausalLMEagle3"]')
    assert does["vllm==0.33.0"].startswith("eyas convert DRAFT_FOLDER --to vllm OUT")


def test_03_a_specforge_draft_is_called_sglang(capsys: pytest.CaptureFixture[str]):
    document = public("03-qwen3vl-8b", capsys)

    assert document["dialect"] == "sglang"
    assert document["ok"]


def test_15_a_packed_quantised_draft_is_not_damage(capsys: pytest.CaptureFixture[str]):
    document = public("15-quantised-draft-head", capsys, "draft.gptq.header.json")

    assert {e["verdict"] for e in document["engines"].values()} == {"ok"}
    assert {f["severity"] for f in document["findings"]} == {"note"}


def test_18_a_map_of_zeros_that_t2d_proves_is_a_warning(capsys: pytest.CaptureFixture[str]):
    document = public("18-d2t-first-n", capsys)

    assert {e["verdict"] for e in document["engines"].values()} == {"ok"}
    assert [f["code"] for f in document["findings"] if f["severity"] != "note"] == ["d2t-zero"]


@pytest.mark.parametrize("layers", [2, 5, 28, 61])
def test_a_layer_count_beyond_the_checkpoint_is_one_finding_on_every_engine(layers: int):
    report = checked(healthy().set(num_hidden_layers=layers), *ENGINES, "sglang==0.5.9")

    [found] = bad(report)
    assert (found.code, found.remedies[0]) == ("layers-overstated", Edit("num_hidden_layers", 1))


def test_a_layer_that_is_missing_in_the_middle_is_missing():
    draft = damage_matrix.build("two-layers-vllm").set(num_hidden_layers=3)
    draft.tensors = {name.replace("layers.1.", "layers.2."): info for name, info in draft.tensors.items()}

    codes = {f.code for f in bad(checked(draft, "vllm==0.33.0"))}

    assert "tensor-missing" in codes
    assert "layers-overstated" not in codes


def packed(suffixes: dict[str, str], quantization: dict[str, Any], *, with_head: bool) -> Draft:
    """A healthy draft whose linear layers (and head) are stored packed, with the companions of the method."""
    draft = healthy().set(quantization_config=quantization)
    for name in [n for n in draft.tensors if n.endswith("_proj.weight") or (with_head and n == "lm_head.weight")]:
        rows, columns = draft.tensors[name][1]
        draft.drop(name)
        module = name.removesuffix(".weight")
        for suffix, dtype in suffixes.items():
            draft.add(f"{module}.{suffix}", max(1, rows // 8), max(1, columns // 8), dtype=dtype)
    return draft


@pytest.mark.parametrize(
    ("suffixes", "quantization", "with_head"),
    [
        ({"qweight": "I32", "qzeros": "I32", "scales": "F16", "g_idx": "I32"}, {"quant_method": "gptq"}, False),
        ({"qweight": "I32", "qzeros": "I32", "scales": "F16"}, {"quant_method": "awq"}, False),
        (
            {"weight_packed": "I32", "weight_scale": "BF16", "weight_shape": "I64"},
            {"quant_method": "compressed-tensors"},
            True,
        ),
        ({"weight": "F8_E4M3", "weight_scale": "F32", "input_scale": "F32"}, {"quant_method": "modelopt"}, False),
        ({"weight": "I8", "weight_scale": "F32"}, {"quant_method": "compressed-tensors"}, True),
    ],
)
def test_quantised_drafts_are_no_alarm(suffixes: dict[str, str], quantization: dict[str, Any], with_head: bool):
    # whether SGLang builds a packed head is not known
    report = checked(packed(suffixes, quantization, with_head=with_head), *ENGINES[with_head:])

    assert [str(f) for f in bad(report)] == []
    assert {ledger.verdict for ledger in report.ledgers.values()} == {"ok"}


def test_a_packed_tensor_that_is_missing_is_still_named():
    draft = packed({"qweight": "I32", "scales": "F16"}, {"quant_method": "gptq"}, with_head=False)
    draft.drop("midlayer.mlp.up_proj.qweight")

    assert "parameters-unfilled" in {f.code for f in bad(checked(draft))}


def _first_ids(of_t2d: range) -> Draft:
    draft = healthy()
    draft.maps = {"d2t": [0] * DRAFT_VOCAB, "t2d": [int(i in of_t2d) for i in range(VOCAB)]}
    return draft


def test_zeros_that_t2d_contradicts_or_nothing_proves_stay_fatal():
    assert bad(checked(_first_ids(range(DRAFT_VOCAB)))) == []
    assert {f.severity for f in bad(checked(_first_ids(range(1, DRAFT_VOCAB + 1))))} == {"error", "fatal"}
    assert "fatal" in {f.severity for f in bad(checked(_first_ids(range(DRAFT_VOCAB)).drop("t2d")))}


FAULTS: dict[str, tuple[Callable[[Draft], Draft], str]] = {
    "a missing norm": (lambda d: d.drop("norm.weight"), "tensor-missing"),
    "a missing projection": (lambda d: d.drop("midlayer.mlp.up_proj.weight"), "tensor-missing"),
    "an unknown tensor": (lambda d: d.add("extra.weight", 7, 5), "tensor-unknown"),
    "an unknown key": (lambda d: d.set(feeling="good"), "config-key-unknown"),
    "a wrong type": (lambda d: d.set(rms_norm_eps="small"), "config-value-invalid"),
    "a wrong shape": (lambda d: d.add("midlayer.self_attn.o_proj.weight", H, H + 8), "tensor-shape"),
    "a bias without its switch": (lambda d: d.add("midlayer.mlp.down_proj.bias", H), "extra-bias"),
    "bare fp8": (lambda d: d.add("midlayer.hidden_norm.weight", H, dtype="F8_E4M3"), "tensor-dtype"),
    "too many layers": (lambda d: d.set(num_hidden_layers=30), "layers-overstated"),
    "another vocabulary": (lambda d: d.set(vocab_size=VOCAB + 64), "vocab-size"),
    "unsorted taps": (lambda d: d.set(eagle_aux_hidden_state_layer_ids=[27, 2, 15]), "aux-unsorted"),
    "a switch of another method": (lambda d: d.set(logit_scale=2), "config-switch-unsupported"),
    "RoPE twice": (
        lambda d: d.set(rope_parameters={"rope_type": "default", "rope_theta": 5.0}),
        "rope-spellings-disagree",
    ),
    "another activation": (lambda d: d.set(hidden_act="gelu"), "activation-unsupported"),
}


@pytest.mark.parametrize("seed", range(40))
def test_of_any_faults_together_every_one_is_named(seed: int):
    chosen = random.Random(seed).sample(sorted(FAULTS), k=1 + seed % 6)
    draft = healthy()
    for name in chosen:
        draft = FAULTS[name][0](draft)

    found = {finding.code for finding in checked(draft).findings}

    assert {FAULTS[name][1] for name in chosen} <= found, chosen


def test_every_edit_that_is_advised_cures_its_finding():
    """Remedies are data: an `Edit` is applied to the config, and the finding must be gone."""
    tried = 0
    for row in damage_matrix.ROWS:
        draft = damage_matrix.build(row)
        for finding in bad(checked(draft)):
            for edit in (remedy for remedy in finding.remedies if isinstance(remedy, Edit)):
                keys, cured = edit.key.split("."), damage_matrix.build(row)
                level = cured.config
                for key in keys[:-1]:
                    level = level[key]
                level[keys[-1]] = edit.value
                assert finding.code not in {f.code for f in bad(checked(cured))}, (row, str(edit))
                tried += 1
    assert tried > 10


def test_the_bare_header_of_a_safetensors_file_is_read_like_a_dump(tmp_path: Path):
    folder = damage_matrix.write(healthy(), tmp_path / "draft")
    with open(folder / "model.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    (folder / "header.json").write_text(json.dumps(header))

    report = check(read_checkpoint(folder / "header.json"), TARGET, [parse_engine(label) for label in ENGINES])

    assert bad(report) == []
    assert {ledger.verdict for ledger in report.ledgers.values()} == {"ok"}


def test_a_hub_id_is_fetched_as_a_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = damage_matrix.write(healthy(), tmp_path / "draft")
    asked: list[str] = []
    monkeypatch.setattr(hub_snapshot, "hub_snapshot", lambda name, _: asked.append(name) or folder)

    assert main(["check", "someone/a-draft"]) == 0
    assert main(["check", str(tmp_path / "not" / "there")]) == 2
    assert asked == ["someone/a-draft"]
