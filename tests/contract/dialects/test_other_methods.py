"""A draft of another method is named in one finding with the flags that serve it; an EAGLE-3 draft never is."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import damage_matrix
from cases_builder import write_case
from eyas.cli.app import main
from eyas.contract.check.check import CheckOptions, check
from eyas.contract.dialects.other_methods import OtherMethod, other_method
from eyas.contract.engines.registry import parse_engine
from eyas.contract.files.checkpoint import Checkpoint, TensorInfo
from eyas.contract.files.read_checkpoint import read_checkpoint
from eyas.contract.reading.read_draft import read_draft

CASES = Path(__file__).parents[1] / "check" / "cases"
REPORTS = Path(__file__).resolve().parents[4] / "shared" / "cases" / "reports"
LAYER = {"layers.0.self_attn.q_proj.weight": (64, 64), "layers.0.mlp.up_proj.weight": (128, 64)}
EAGLE1 = {**LAYER, "fc.weight": (64, 128), "layers.0.post_attention_layernorm.weight": (64,)}
EAGLE3 = {"fc.weight": (64, 192), "midlayer.hidden_norm.weight": (64,), "midlayer.self_attn.q_proj.weight": (64, 128)}
MODEL = {**{f"model.{name}": shape for name, shape in LAYER.items()}, "model.embed_tokens.weight": (256, 64)}


def of(config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> Checkpoint:
    infos = {name: TensorInfo(dtype="BF16", shape=shape) for name, shape in tensors.items()}
    return Checkpoint(where="draft", kind="dump", config=config, tensors=infos)


def named(name: str, **more: Any) -> dict[str, Any]:
    return {"architectures": [name], "model_type": "llama", "hidden_size": 64, **more}


MEMBERS = [
    ("dflash", named("DFlashDraftModel", dflash_config={"mask_token_id": 9}), {**LAYER, "fc.weight": (64, 320)}),
    ("dflash", named("Qwen3ForCausalLM", dflash_config={}), {**LAYER, "fc.weight": (64, 192)}),
    ("dflash", {"speculators_model_type": "dflash", "speculators_config": {}}, LAYER),
    ("dspark", named("DSparkDraftModel"), LAYER),
    ("eagle1", named("LlamaForCausalLM"), EAGLE1),
    ("eagle1", named("EagleLlamaForCausalLM"), {f"model.{name}": shape for name, shape in EAGLE1.items()}),
    ("eagle1", named("LlamaForCausalLMEagle"), {**EAGLE1, "embed_tokens.weight": (256, 64), "fc.bias": (64,)}),
    ("mtp", named("DeepseekV3ForCausalLMNextN"), {"model.layers.0.eh_proj.weight": (64, 128)}),
    ("mtp", named("Qwen3NextForCausalLM"), {"mtp.fc.weight": (64, 128), "mtp.norm.weight": (64,)}),
    ("mtp", named("Glm4MoeForCausalLM"), {"model.layers.46.enorm.weight": (64,)}),
    ("medusa", named("MedusaModel", medusa_num_heads=5), {"0.0.linear.weight": (64, 64), "0.1.weight": (256, 64)}),
    ("medusa", {"medusa_num_heads": 3, "medusa_num_layers": 1}, {"medusa_head.0.0.linear.weight": (64, 64)}),
    ("medusa", named("Unknown"), {"0.0.linear.weight": (64, 64), "0.0.linear.bias": (64,), "1.1.weight": (256, 64)}),
    ("mlp-speculator", named("MLPSpeculatorPreTrainedModel"), {"speculator.emb.0.weight": (256, 64)}),
    ("moe", named("Qwen3MoEForCausalLMEagle3"), {**EAGLE3, "midlayer.mlp.experts.0.up_proj.weight": (64, 64)}),
    ("moe", named("LlamaForCausalLMEagle3"), {**EAGLE3, "midlayer.mlp.gate.weight": (8, 64)}),
    ("moe", named("Eagle3Qwen3moe"), {"fc.weight": (64, 192), "layers.0.mlp.experts.gate_up_proj": (8, 64, 64)}),
    ("plain", named("LlamaForCausalLM"), MODEL),
    ("plain", named("Qwen2ForCausalLM"), {**MODEL, "lm_head.weight": (256, 64)}),
    ("plain", named("Qwen3ForCausalLM", num_hidden_layers=28), {**MODEL, "model.norm.weight": (64,)}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "config", "tensors"), MEMBERS)
def test_the_method_is_named_in_one_finding(method: str, config: dict[str, Any], tensors: dict[str, tuple[int, ...]]):
    draft = of(config, tensors)
    report = check(draft, None, [parse_engine("sglang==0.5.23"), parse_engine("vllm==0.33.0")])

    [found] = report.findings
    assert (found.code, found.severity, found.items, report.dialect) == ("other-method", "error", (method,), method)
    assert report.ledgers == {}
    with pytest.raises(OtherMethod):
        read_draft(draft)


@pytest.mark.parametrize(
    ("case", "method", "flags"),
    [
        ("07-dflash-as-eagle3", "dflash", ["--speculative-algorithm DFLASH", '"method": "dflash"']),
        ("11-eagle1-draft-as-eagle3", "eagle1", ["--speculative-algorithm EAGLE", '"method": "eagle"']),
        ("05-qwen3-moe-draft", "moe", ["plug-in"]),
    ],
)
def test_public_drafts_of_other_methods_get_their_flags(
    case: str, method: str, flags: list[str], capsys: pytest.CaptureFixture[str]
):
    if not REPORTS.exists():
        pytest.skip("the shared reports are not here")
    arguments = [str(REPORTS / case / "draft.header.json"), "--target", str(REPORTS / case / "target.config.json")]

    assert main(["check", *arguments, "--for", "sglang==0.5.23", "--for", "vllm==0.33.0", "--json"]) == 1

    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    [found] = document["findings"]
    assert (document["dialect"], found["code"]) == (method, "other-method")
    assert all(flag in found["do"] for flag in flags)


def test_the_right_launch_of_another_method_is_not_an_error():
    draft = of(named("LlamaForCausalLM"), EAGLE1)

    [found] = check(draft, None, [parse_engine("sglang==0.5.23")], CheckOptions(algorithm="EAGLE")).findings

    assert (found.code, found.severity) == ("other-method", "warning")


def test_no_public_eagle3_draft_and_no_damaged_one_is_taken_for_another_method(tmp_path: Path):
    drafts = []
    for path in sorted(CASES.glob("*.json")):
        (tmp_path / path.stem).mkdir()
        drafts.append(write_case(json.loads(path.read_text()), tmp_path / path.stem)[0])
    for row in damage_matrix.ROWS:
        drafts.append(damage_matrix.write(damage_matrix.build(row), tmp_path / row))

    assert [str(draft) for draft in drafts if other_method(read_checkpoint(draft)) is not None] == []
