"""Round trips are byte-identical for every pair of formats that can hold a draft; losses are refused by name."""

import itertools
import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import damage_matrix
from conversions import BUILDS, HOLDS, WRITABLE, content, convert, planned
from drafts import (
    DraftBuild,
    draft_ids,
    flat_config,
    sglang_name,
    tensors,
    with_changes,
    write_draft,
    write_folder,
    write_target,
)
from eyas.cli.app import main
from eyas.contract.convert.conversion import (
    ConversionNeedsWeights,
    ConversionOfDamage,
    ConversionRefused,
    FixUnproven,
)
from eyas.contract.convert.conversion_apply import apply_conversion
from eyas.contract.convert.conversion_plan import plan_conversion
from eyas.contract.dialects.registry import dialect_named
from eyas.contract.files.header_dump import dump_document
from eyas.contract.files.read_checkpoint import read_checkpoint
from eyas.contract.reading.draft_findings import draft_findings
from eyas.contract.reading.read_draft import read_draft
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.target_spec import read_target
from eyas.diagnostic import SEVERITIES
from eyas.talk import Silent

SWITCHES = (
    "draft_class", "hidden_size", "target_hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads",
    "head_dim", "vocab_size", "draft_vocab_size", "num_aux", "rms_norm_eps", "activation", "rope",
    "max_position_embeddings", "sliding_window", "qk_norm", "attention_bias", "mlp_bias", "fc_bias", "mla", "residual",
    "aux_norm", "feedback", "aux_boundaries", "head",
)  # fmt: skip


def wanted_bytes(build: DraftBuild) -> dict[str, bytes]:
    found = tensors(with_changes(build, t2d=True))
    return {name: data for name, (_, _, data) in found.items()}


def own_bytes(found: dict[str, bytes]) -> dict[str, bytes]:
    """Without what a format derives: the mask, and biases of o_proj, which must be zeros."""
    derived = [name for name in found if name == "t2d" or name.endswith("o_proj.bias")]
    assert not any(any(found[name]) for name in derived if name != "t2d")
    return {name: data for name, data in found.items() if name not in derived}


def switches(spec: DraftSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in SWITCHES}


@pytest.mark.parametrize("name", BUILDS)
def test_there_and_back_is_byte_identical_for_every_pair_that_holds_the_draft(tmp_path: Path, name: str):
    build = BUILDS[name]
    target = write_target(tmp_path / "target", build, weights=False)
    source = write_draft(tmp_path / "source", build, names="layers" if build.qk_norm else "midlayer")
    spec, _ = content(source, target)
    held = []
    for to in WRITABLE:
        try:
            convert(source, to, tmp_path / to, target)
        except ConversionRefused:
            continue
        held.append(to)
    assert set(held) == HOLDS[name]
    for first in held:
        first_spec, first_bytes = content(tmp_path / first, target)
        assert switches(first_spec) == switches(spec), first
        assert own_bytes(first_bytes) == own_bytes(wanted_bytes(build)), first
    for first, second in itertools.permutations(held, 2):
        out = tmp_path / f"{first}-{second}"
        convert(tmp_path / first, second, out, target)
        second_spec, second_bytes = content(out, target)
        assert switches(second_spec) == switches(spec), (first, second)
        assert own_bytes(second_bytes) == own_bytes(wanted_bytes(build)), (first, second)
        assert second_bytes.get("t2d", wanted_bytes(build).get("t2d")) == wanted_bytes(build).get("t2d"), (
            first,
            second,
        )
        assert ("t2d" in second_bytes) == (second != "modelopt" and build.draft_vocab != build.vocab), (first, second)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    build=st.builds(
        DraftBuild,
        hidden=st.sampled_from([8, 16]),
        heads=st.sampled_from([2, 4]),
        kv_heads=st.sampled_from([1, 2]),
        layers=st.integers(1, 3),
        aux=st.lists(st.integers(1, 12), min_size=1, max_size=5, unique=True).map(lambda ids: tuple(sorted(ids))),
        dtype=st.sampled_from(["BF16", "F16", "F32"]),
        residual=st.booleans(),
        fc_norm=st.booleans(),
        norm_output=st.booleans(),
        qk_norm=st.booleans(),
        attention_bias=st.booleans(),
        own_embedding=st.booleans(),
        draft_vocab=st.sampled_from([10, 40, 64]),
        seed=st.integers(0, 1000),
    ),
    to=st.sampled_from(WRITABLE),
)
def test_a_random_draft_is_converted_whole_or_refused(
    tmp_path_factory: pytest.TempPathFactory, build: DraftBuild, to: str
):
    folder = tmp_path_factory.mktemp("draft")
    build = with_changes(build, target_hidden=build.hidden)
    target = write_target(folder / "target", build, weights=False)
    source = write_draft(folder / "source", build)
    try:
        convert(source, to, folder / "out", target)
    except ConversionRefused as error:
        refusal = error
    else:
        refusal = None
    if refusal is not None:
        assert "[loss-" in refusal.why
        assert not (folder / "out").exists()
        return
    spec, found = content(folder / "out", target)
    assert switches(spec) == switches(content(source, target)[0])
    assert own_bytes(found) == own_bytes(wanted_bytes(build))


@pytest.mark.parametrize(
    ("build", "to", "code", "switch"),
    [
        (DraftBuild(residual=True), "sglang", "loss-residual", "residual"),
        (DraftBuild(norm_output=True), "eagle", "loss-feedback", "feedback"),
        (DraftBuild(fc_norm=True), "modelopt", "loss-aux-norm", "aux_norm"),
        (DraftBuild(qk_norm=True), "sglang", "loss-qk-norm", "qk_norm"),
        (DraftBuild(attention_bias=True), "sglang", "loss-attention-bias", "attention_bias"),
        (DraftBuild(mlp_bias=True), "sglang", "loss-mlp-bias", "mlp_bias"),
        (DraftBuild(fc_bias=True), "vllm", "loss-fc-bias", "fc_bias"),
        (DraftBuild(sliding_window=8), "sglang", "loss-sliding-window", "sliding_window"),
        (DraftBuild(scaling={"rope_type": "yarn", "factor": 2.0}), "eagle", "loss-rope", "rope"),
        (DraftBuild(own_embedding=True), "modelopt", "loss-embedding", "embedding"),
        (DraftBuild(aux=(1, 5, 9)), "eagle", "loss-aux-boundaries", "aux_boundaries"),
        (DraftBuild(aux=(6,)), "sglang", "loss-num-aux", "num_aux"),
    ],
)
def test_a_loss_is_refused_by_name_and_allowed_on_the_record(
    tmp_path: Path, build: DraftBuild, to: str, code: str, switch: str
):
    target = write_target(tmp_path / "t", build, weights=False)
    source = write_draft(tmp_path / "source", build)

    with pytest.raises(ConversionRefused) as caught:
        convert(source, to, tmp_path / "out", target)
    assert f"[{code}] {switch}" in caught.value.why
    assert f"--allow {code}" in caught.value.do

    convert(source, to, tmp_path / "out", target, allow=(code,))
    sidecar = json.loads((tmp_path / "out" / "eyas.json").read_text())
    assert list(sidecar["allowed"]) == [code]
    reading = read_draft(read_checkpoint(tmp_path / "out"))
    found = {f.code for f in draft_findings(reading) if SEVERITIES.index(f.severity) >= SEVERITIES.index("error")}
    assert found == set(), "the written config describes what was written"


@pytest.mark.parametrize(
    ("build", "to", "code"),
    [
        (DraftBuild(mla=True), "speculators", "loss-mla"),
        (DraftBuild(layers=2), "eagle", "loss-layers"),
        (DraftBuild(aux=(2, 6)), "angelslim", "loss-num-aux"),
        (DraftBuild(target_hidden=32, own_embedding=True), "modelopt", "loss-target-hidden-size"),
    ],
)
def test_what_would_be_another_model_cannot_be_allowed(tmp_path: Path, build: DraftBuild, to: str, code: str):
    source = write_draft(tmp_path / "source", build)
    target = write_target(tmp_path / "t", build, weights=False)
    with pytest.raises(ConversionRefused, match=code) as caught:
        convert(source, to, tmp_path / "out", target, allow=(code, "loss-embedding"))
    assert "--allow" not in caught.value.do


def test_speculators_without_known_depth_are_refused_and_with_it_get_their_ids(tmp_path: Path):
    source = write_draft(tmp_path / "source", names="midlayer")
    config = json.loads((source / "config.json").read_text())
    del config["eagle_aux_hidden_state_layer_ids"]
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConversionRefused, match="loss-aux-boundaries") as caught:
        convert(source, "speculators", tmp_path / "out")
    assert caught.value.do.index("--target T") < caught.value.do.index("--allow loss-aux-boundaries")
    for to in ("vllm", "trtllm"):
        assert [note for note in planned(source, to).notes if "no aux layer ids are written" in note]
        assert not planned(source, to, write_target(tmp_path / f"t-{to}")).notes
    convert(source, "speculators", tmp_path / "out", write_target(tmp_path / "t"))
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["eagle_aux_hidden_state_layer_ids"] == [2, 6, 9]
    assert written["transformer_layer_config"]["num_aux_hidden_states"] == 3


def test_the_targets_embedding_is_copied_in_where_the_format_wants_it_and_out_again(tmp_path: Path):
    target = write_target(tmp_path / "t")
    source = write_draft(tmp_path / "source", names="midlayer")

    convert(source, "speculators", tmp_path / "spec", target)
    spec, found = content(tmp_path / "spec")
    assert spec.embedding == "own"
    assert found["embed_tokens.weight"] == (target / "model.safetensors").read_bytes()[-64 * 16 * 2 :]

    convert(tmp_path / "spec", "torchspec", tmp_path / "kept")
    assert content(tmp_path / "kept")[1] == found
    convert(tmp_path / "kept", "sglang", tmp_path / "back")
    assert content(tmp_path / "back")[1] == content(source)[1]
    sidecar = json.loads((tmp_path / "back" / "eyas.json").read_text())
    assert "embed_tokens.weight" in sidecar["dropped"]


def test_an_embedding_that_the_draft_trained_itself_stays(tmp_path: Path):
    source = write_draft(tmp_path / "source", own_embedding=True)
    convert(source, "speculators", tmp_path / "spec", write_target(tmp_path / "t"))
    convert(tmp_path / "spec", "sglang", tmp_path / "back")
    assert (
        content(tmp_path / "back")[1]["embed_tokens.weight"]
        == wanted_bytes(DraftBuild(own_embedding=True))["embed_tokens.weight"]
    )


def test_rope_is_written_in_both_spellings_and_every_switch_explicitly(tmp_path: Path):
    convert(write_draft(tmp_path / "s"), "sglang", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 500000.0
    assert config["rope_scaling"] is None
    for key in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "tie_word_embeddings", "bias"):
        assert config[key] is False
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 5, 8]
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 6, 9]


def test_the_sidecar_holds_contract_provenance_and_fingerprints_but_no_path(tmp_path: Path):
    done = convert(write_draft(tmp_path / "s"), "vllm", tmp_path / "out", write_target(tmp_path / "t"))
    text = (tmp_path / "out" / "eyas.json").read_text()
    sidecar = json.loads(text)
    assert str(tmp_path) not in text
    assert sidecar["schema"] == "eyas.draft/1"
    assert sidecar["contract"]["aux_boundaries"] == [2, 6, 9]
    assert sidecar["provenance"]["rope"]
    assert sidecar["target"]["fingerprint"] == read_target(tmp_path / "t").fingerprint
    assert sidecar["tensors_fingerprint"] == done.fingerprint


def test_the_fingerprint_of_the_tensors_is_the_same_in_every_format(tmp_path: Path):
    target = write_target(tmp_path / "t")
    source = write_draft(tmp_path / "s")
    prints = {convert(source, to, tmp_path / to, target).fingerprint for to in ("sglang", "speculators", "eagle")}
    prints |= {convert(tmp_path / "speculators", to, tmp_path / f"{to}2").fingerprint for to in ("modelopt", "vllm")}
    assert len(prints) == 1


def test_an_edited_config_outweighs_the_sidecar(tmp_path: Path):
    convert(write_draft(tmp_path / "s"), "vllm", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    config["eagle_aux_hidden_state_layer_ids"] = [3, 7, 10]
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    assert read_draft(read_checkpoint(tmp_path / "out")).spec.aux_boundaries == (3, 7, 10)


def test_a_damaged_draft_is_not_converted_unless_told_to(tmp_path: Path):
    source = write_draft(tmp_path / "s", extra_config={"foo": 1})
    with pytest.raises(ConversionOfDamage, match="config-key-unknown"):
        convert(source, "sglang", tmp_path / "out")
    convert(source, "sglang", tmp_path / "out", allow=("config-key-unknown",))
    assert "config-key-unknown" in json.loads((tmp_path / "out" / "eyas.json").read_text())["allowed"]


@pytest.mark.parametrize("with_t2d", [True, False])
def test_a_d2t_of_absolute_ids_is_fixed_where_it_is_proven_and_nowhere_else(with_t2d: bool, tmp_path: Path):
    """By t2d or, without one, because as offsets the values leave the vocabulary."""
    wanted, absolute = tensors(DraftBuild()), array("q", draft_ids(DraftBuild())).tobytes()
    wrong = {sglang_name(name): held for name, held in wanted.items()} | {"d2t": ("I64", (40,), absolute)}
    wrong = {name: held for name, held in wrong.items() if with_t2d or name != "t2d"}
    off = write_folder(tmp_path / "off", flat_config(DraftBuild()), wrong)
    turned = wrong | {"d2t": ("I64", (40,), array("q", reversed(draft_ids(DraftBuild()))).tobytes())}
    for folder in (write_draft(tmp_path / "sound"), write_folder(tmp_path / "t", flat_config(DraftBuild()), turned)):
        with pytest.raises(FixUnproven) as caught:
            planned(folder, "vllm", fix=("d2t-absolute",))
        assert "eyas check" not in caught.value.do, "which would lead back here"
    with pytest.raises(ConversionOfDamage, match="--fix d2t-absolute") as caught:
        planned(off, "vllm")
    assert "--to sglang --fix d2t-absolute OUT" in caught.value.do

    apply_conversion(planned(off, "vllm", fix=("d2t-absolute",)), tmp_path / "out", Silent())

    assert own_bytes(content(tmp_path / "out")[1]) == own_bytes(wanted_bytes(DraftBuild()))
    sidecar = json.loads((tmp_path / "out" / "eyas.json").read_text())
    assert (sidecar["tensors"]["d2t"]["origin"], sidecar["allowed"]) == ("d2t[i] - i", {})
    assert ("agrees with t2d" if with_t2d else "leave the vocabulary") in sidecar["notes"][-1]


def test_a_permuted_full_vocabulary_is_a_loss_where_there_is_no_map(tmp_path: Path):
    build = DraftBuild(draft_vocab=64)
    found = tensors(build)
    offsets = array("q", [1 if i % 2 == 0 else -1 for i in range(64)]).tobytes()
    found = {sglang_name(k): v for k, v in found.items()} | {"d2t": ("I64", (64,), offsets)}
    source = write_folder(tmp_path / "s", flat_config(build), found)
    with pytest.raises(ConversionRefused, match="loss-vocab-map"):
        convert(source, "vllm", tmp_path / "out")


def test_a_dump_has_no_weights_to_convert(tmp_path: Path):
    from eyas.contract.files.header_dump import dump_document

    (tmp_path / "x.json").write_text(json.dumps(dump_document(read_checkpoint(write_draft(tmp_path / "s")))))
    with pytest.raises(ConversionNeedsWeights):
        convert(tmp_path / "x.json", "sglang", tmp_path / "out")


def test_a_draft_whose_activation_no_engine_computes_is_refused_by_name(tmp_path: Path):
    folder = damage_matrix.write(damage_matrix.healthy().set(hidden_act="gelu"), tmp_path / "draft")
    reading = read_draft(read_checkpoint(folder))

    for name in ("sglang", "vllm", "speculators"):
        with pytest.raises(ConversionRefused) as caught:
            plan_conversion(reading, dialect_named(name), None)
        assert "--allow loss-activation" in caught.value.do
        allowed = ["loss-activation", "loss-aux-boundaries"]
        assert "loss-activation" in plan_conversion(reading, dialect_named(name), None, allowed).allowed
    assert plan_conversion(reading, dialect_named("trtllm"), None).tensors


def test_a_header_dump_is_planned_and_never_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = damage_matrix.write(damage_matrix.healthy(), tmp_path / "draft")
    dump = tmp_path / "d.json"
    dump.write_text(json.dumps(dump_document(read_checkpoint(folder))))

    for to in ("sglang", "vllm", "speculators", "eagle"):
        asked = ["--to", to, "--allow", "loss-aux-boundaries", "--dry-run", "--json"]
        plans = []
        for source in (folder, dump):
            assert main(["convert", str(source), *asked]) == 0
            plans.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
        assert plans[0]["tensors"] == plans[1]["tensors"]
        assert plans[0]["config"] == plans[1]["config"]
    assert main(["convert", str(dump), str(tmp_path / "out"), "--to", "vllm"]) == 2
    assert not (tmp_path / "out").exists()
