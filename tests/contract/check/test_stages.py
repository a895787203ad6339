"""Start, load and capture are judged independently: no fault hides another, in the text and as JSON."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import damage_matrix
from damage_matrix import Draft
from eyas.cli.app import main
from eyas.contract.check.check import CheckReport, check
from eyas.contract.engines.registry import parse_engine
from eyas.contract.files.read_checkpoint import read_checkpoint, read_target_checkpoint

UNTAPPED = {"sglang==0.5.9": "KimiK25ForConditionalGeneration", "vllm==0.33.0": "MixtralForCausalLM"}


def target_of(folder: Path, architecture: str = "LlamaForCausalLM") -> Path:
    path = damage_matrix.write_target(folder)
    config = json.loads((path / "config.json").read_text()) | {"architectures": [architecture]}
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture
def kimi(tmp_path: Path) -> tuple[Path, Path]:
    """A draft whose layer is called layers.0, for a target that SGLang 0.5.9 cannot tap."""
    draft = damage_matrix.write(damage_matrix.build("intact-layers0"), tmp_path / "draft")
    return draft, target_of(tmp_path / "target", UNTAPPED["sglang==0.5.9"])


def test_a_missing_hook_does_not_hide_the_ten_tensors_that_are_dropped(kimi: tuple[Path, Path]):
    report = check(read_checkpoint(kimi[0]), read_target_checkpoint(kimi[1]), [parse_engine("sglang==0.5.9")])

    ledger = report.ledgers["sglang==0.5.9"]
    assert ledger.verdict == "crash"
    assert ledger.stages == {"start": ("ok", None), "load": ("silent-damage", "fatal"), "capture": ("crash", None)}
    assert len(ledger.dropped) == 10
    assert all(name.startswith("layers.0.") for name in ledger.dropped)
    codes = {f.code for f in report.findings}
    assert {"target-hook-missing", "parameters-unfilled"} <= codes
    hook = next(f for f in report.findings if f.code == "target-hook-missing")
    assert "as released" in hook.what
    assert "0.5.10 or newer" in hook.advice
    assert "if yours is patched" in hook.advice


def test_the_text_and_the_json_say_so_too(kimi: tuple[Path, Path], capsys: pytest.CaptureFixture[str]):
    words = ["check", str(kimi[0]), "--target", str(kimi[1]), "--for", "sglang==0.5.9"]
    assert main(words) == 1
    text = capsys.readouterr().out
    assert main([*words, "--json"]) == 1
    document = json.loads(capsys.readouterr().out.splitlines()[-1])["engines"]["sglang==0.5.9"]

    assert len(document["dropped"]) == 10
    assert all(name in text for name in document["dropped"])
    assert document["stages"]["load"] == {"verdict": "silent-damage", "severity": "fatal"}
    assert document["stages"]["capture"]["verdict"] == "crash"
    assert "each by itself: load SILENT DAMAGE (fatal); capture CRASH" in text


@pytest.mark.parametrize("row", ["activation-gelu", "draft-vocab-missing", "arch-llama", "model-type-unknown"])
def test_a_fault_of_the_start_does_not_hide_those_of_the_load(tmp_path: Path, row: str):
    broken = damage_matrix.build(row).drop("fc.weight")
    draft = read_checkpoint(damage_matrix.write(broken, tmp_path / "draft"))

    report = check(draft, None, [parse_engine("sglang==0.5.23")])

    ledger = report.ledgers["sglang==0.5.23"]
    assert ledger.stages["start"][0] in ("crash", "refuses")
    assert "model.fc.weight" in ledger.unfilled


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One planted fault, and by which codes it counts as named (`name` must be in the finding too).

    Attributes:
        target: architecture of the target, where the fault is the target's.
        only: engines that have the fault; () = all.
    """

    plant: Callable[[Draft], object]
    codes: frozenset[str]
    name: str = ""
    target: str = ""
    only: tuple[str, ...] = ()


def fault(plant: Callable[[Draft], object], *codes: str, **more: object) -> Fault:
    return Fault(plant=plant, codes=frozenset(codes), **more)  # type: ignore[arg-type]


def _absolute_map(draft: Draft) -> None:
    draft.maps["d2t"] = damage_matrix.draft_ids()


NEWER = ("sglang==0.5.23", "vllm==0.33.0")
FAULTS = {
    "no q_proj": fault(
        lambda d: d.drop("midlayer.self_attn.q_proj.weight"), "parameters-unfilled", "tensor-missing", name="q"
    ),
    "no fc": fault(lambda d: d.drop("fc.weight"), "parameters-unfilled", "tensor-missing", name="fc"),
    "no final norm": fault(lambda d: d.drop("norm.weight"), "parameters-unfilled", "tensor-missing", name="norm"),
    "wide k_proj": fault(
        lambda d: d.add("midlayer.self_attn.k_proj.weight", 64, 2 * damage_matrix.H + 32),
        "loader-crash", "tensor-shape", "tensor-sizes", "sizes-disagree", name="k_proj",
    ),
    "short down_proj": fault(
        lambda d: d.add("midlayer.mlp.down_proj.weight", damage_matrix.H - 8, damage_matrix.INNER),
        "loader-crash", "tensor-shape", "tensor-sizes", name="down_proj",
    ),
    "unknown tensor": fault(
        lambda d: d.add("midlayer.gadget.weight", 7), "tensors-dropped", "loader-crash", "tensor-unknown",
        name="gadget",
    ),
    "gelu": fault(lambda d: d.set(hidden_act="gelu"), "activation-unsupported", name="gelu"),
    "absolute d2t": fault(_absolute_map, "vocab-map-wrong", "vocab-map-absolute", name="d2t"),
    "model_type": fault(lambda d: d.set(model_type="my_draft"), "model-type-unknown", name="my_draft"),
    "five states": fault(
        lambda d: d.config["eagle_config"].update(eagle_aux_hidden_state_layer_ids=[1, 5, 9, 14, 26]),
        "aux-count", "loader-crash", "aux-count-differs", "num-aux",
    ),
    "no hook": fault(lambda d: None, "target-hook-missing", target="here", only=tuple(UNTAPPED)),
    "tied head": fault(
        lambda d: d.set(tie_word_embeddings=True), "head-tied", "tie-contradicts",
        only=("sglang==0.5.9", "sglang==0.5.23"),
    ),
    "ignored norm": fault(
        lambda d: d.set(norm_output=True), "switches-ignored", name="norm_output", only=("sglang==0.5.9",)
    ),
}  # fmt: skip


def is_named(report: CheckReport, planted: Fault) -> bool:
    def text(finding: object) -> str:
        return str(finding) + " ".join(getattr(finding, "items", ()))

    return any(f.code in planted.codes and planted.name in text(f) for f in report.findings)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.sets(st.sampled_from(sorted(FAULTS)), min_size=1, max_size=6),
    engine=st.sampled_from(["sglang==0.5.9", *NEWER]),
)
def test_any_subset_of_planted_faults_is_named_fault_by_fault(
    tmp_path_factory: pytest.TempPathFactory, names: set[str], engine: str
):
    planted = {n: FAULTS[n] for n in names if not FAULTS[n].only or engine in FAULTS[n].only}
    if "no fc" in planted:
        planted.pop("five states", None)  # only the width of fc shows that there are not five
    draft, folder = damage_matrix.healthy(), tmp_path_factory.mktemp("planted")
    for one in planted.values():
        one.plant(draft)
    untapped = any(one.target for one in planted.values())
    target = target_of(folder / "target", UNTAPPED.get(engine, "") if untapped else "LlamaForCausalLM")
    checkpoint = read_checkpoint(damage_matrix.write(draft, folder / "draft"))

    report = check(checkpoint, read_target_checkpoint(target), [parse_engine(engine)])

    assert [name for name, one in planted.items() if not is_named(report, one)] == []


def test_a_draft_without_faults_names_none_of_them(tmp_path: Path):
    draft = read_checkpoint(damage_matrix.write(damage_matrix.healthy(), tmp_path / "draft"))

    report = check(draft, read_target_checkpoint(target_of(tmp_path / "target")), [parse_engine("sglang==0.5.23")])

    assert [name for name, one in FAULTS.items() if is_named(report, one)] == []
