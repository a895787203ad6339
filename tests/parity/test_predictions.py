"""`check --probe`: the accept length as trained beside the one that each engine will serve."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.cli.app import main
from eyas.contract.spec.draft_spec import Rope
from eyas.contract.spec.target_spec import read_target
from eyas.models.save_draft import save_draft
from tiny_draft import tiny_draft
from tiny_target import tiny_target


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A target, a draft, a probe pack, and the draft again under names that SGLang 0.5.9 drops."""
    folder = tmp_path_factory.mktemp("probe")
    tiny_target(vocab_size=6, seed=3).save_pretrained(folder / "target")
    shape = {"vocab_size": 6, "draft_vocab_size": 5, "target_hidden_size": 32, "hidden_size": 32}
    draft = tiny_draft(**shape, embedding="target", aux_boundaries=(1, 2, 3))
    save_draft(draft, folder / "draft", target_spec=read_target(folder / "target"))
    rows = [
        {"prompt_ids": [a, b], "response_ids": [(a + b + i * i) % 6 for i in range(40)]}
        for a in range(3)
        for b in (1, 4)
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    data = ["--data", str(folder / "rows.jsonl"), "--write-probe", str(folder / "pack")]
    assert main(["eval", str(folder / "draft"), "--target", str(folder / "target"), *data, "--probe-neighbours"]) == 0
    (folder / "renamed").mkdir()
    for file in (folder / "draft").iterdir():
        (folder / "renamed" / file.name).write_bytes(file.read_bytes())
    (folder / "renamed" / "eyas.json").unlink()
    tensors = load_file(folder / "draft" / "model.safetensors")
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    save_file(renamed, folder / "renamed" / "model.safetensors")
    return folder


def checked(capsys, folder: Path, draft: str, *more: str) -> tuple[int, dict, str]:
    capsys.readouterr()
    probe = ["--probe", str(folder / "pack"), "--json"]
    code = main(["check", str(folder / draft), "--target", str(folder / "target"), *more, *probe])
    told = capsys.readouterr()
    return code, json.loads(told.out.splitlines()[-1]), told.err


def test_an_engine_that_loads_everything_will_serve_what_was_trained(folder, capsys):
    code, document, text = checked(capsys, folder, "draft", "--for", "sglang==0.5.23", "-k", "3")

    probe = document["probe"]
    served = probe["engines"]["sglang==0.5.23"]["served"]
    assert served == {"exact": probe["trained"]}
    assert probe["trained"]["rounds"] > 50
    assert "predicted: sglang==0.5.23" in text
    assert code in (0, 1)


def test_our_own_engine_is_one_more_column(folder, capsys):
    code, document, text = checked(capsys, folder, "draft", "--for", "ours")

    probe = document["probe"]
    assert (code, document["ours"]["ok"]) == (0, True)
    assert probe["engines"]["ours"]["served"] == {"exact": probe["trained"]}
    assert "predicted: ours" in text


def test_a_draft_that_our_engine_cannot_load_is_refused_with_the_reason(folder, tmp_path, capsys):
    cut = tmp_path / "cut"
    cut.mkdir()
    for file in (folder / "draft").iterdir():
        (cut / file.name).write_bytes(file.read_bytes())
    tensors = load_file(cut / "model.safetensors")
    save_file({name: t for name, t in tensors.items() if "down_proj" not in name}, cut / "model.safetensors")

    code = main(["check", str(cut), "--target", str(folder / "target"), "--for", "ours", "--json"])
    told = capsys.readouterr()

    document = json.loads(told.out.splitlines()[-1])
    assert (code, document["ours"]["ok"]) == (1, False)
    assert "ours: REFUSED" in told.err


def test_eval_shows_trained_predicted_and_served_beside_each_other(folder, tmp_path, capsys):
    """The predictions of `check --probe` are those of `eval --for`; served figures come from a run's documents."""
    checked_ = checked(capsys, folder, "renamed", "--for", "sglang==0.5.9", "-k", "3")[1]
    served = {"rounds": 300, "accept_length": 1.04, "per_position": [0.03, 0.01, 0.0]}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "verdict.json").write_text(json.dumps({"schema": "eyas.verdict/1", **served}))
    words = ["--probe", str(folder / "pack"), "--for", "sglang==0.5.9", "--beside", str(tmp_path / "run")]

    code = main(["eval", str(folder / "renamed"), *words, "-k", "3", "--json"])
    told = capsys.readouterr()

    document = json.loads(told.out.splitlines()[-1])
    assert code == 0
    assert document["predicted"]["sglang==0.5.9"]["served"] == checked_["probe"]["engines"]["sglang==0.5.9"]["served"]
    kinds = [(column["kind"], column["source"]) for column in document["side_by_side"]]
    assert kinds == [
        ("trained", "this evaluation"),
        ("predicted", "this evaluation, sglang==0.5.9"),
        ("served", "verdict"),
    ]
    assert document["side_by_side"][2]["accept_length"] == {"low": 1.04, "high": 1.04}
    assert "served: verdict" in told.err


def test_predictions_are_of_chains(folder, capsys):
    words = ["--target", str(folder / "target"), "--for", "sglang==0.5.9", "--tree", "2x2x3", "--json"]
    code = main(["eval", str(folder / "draft"), *words])

    assert (code, json.loads(capsys.readouterr().out.splitlines()[-1])["code"]) == (2, "eval-config-invalid")


def test_an_engine_that_drops_the_layer_will_serve_a_range_below_it(folder, capsys):
    code, document, text = checked(capsys, folder, "renamed", "--for", "sglang==0.5.9", "-k", "3")

    probe = document["probe"]
    found = probe["engines"]["sglang==0.5.9"]
    assert code == 1
    assert len(found["lost"]) >= 8
    assert set(found["served"]) == {"zeros", "normal", "garbage"}
    assert found["accept_length"]["low"] <= found["accept_length"]["high"]
    assert any(f["accepted_at"] != probe["trained"]["accepted_at"] for f in found["served"].values())
    assert "the range covers what memory may hold" in text


def test_what_keeps_an_engine_from_serving_is_said_beside_the_figure(folder, capsys):
    config = json.loads((folder / "draft" / "config.json").read_text())
    refused = folder / "refused"
    refused.mkdir()
    for file in (folder / "draft").iterdir():
        (refused / file.name).write_bytes(file.read_bytes())
    (refused / "config.json").write_text(json.dumps({**config, "architectures": ["NoSuchDraft"]}))

    code, document, text = checked(capsys, folder, "refused", "--for", "vllm==0.33.0")

    assert code == 1
    assert document["probe"]["engines"]["vllm==0.33.0"]["blocked"] == ["draft-class-unknown"]
    assert "vllm==0.33.0 does not serve it as it is (draft-class-unknown): the figure holds after that" in text


def test_a_pack_of_rows_that_the_target_has_no_ids_for_is_refused(folder, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt_ids": [1, 70000], "response_ids": [4, 5]}\n')
    words = ["--data", str(rows), "--write-probe", str(tmp_path / "pack"), "--json"]

    code = main(["eval", str(folder / "draft"), "--target", str(folder / "target"), *words])

    assert (code, json.loads(capsys.readouterr().out.splitlines()[-1])["code"]) == (2, "row-outside-vocabulary")
    assert not (tmp_path / "pack").exists()


SHAPE = {"vocab_size": 6, "draft_vocab_size": 5, "target_hidden_size": 32, "hidden_size": 32, "embedding": "target"}


def variant(folder: Path, name: str, **changes: object) -> Path:
    path = folder / name
    draft = tiny_draft(**SHAPE, aux_boundaries=(1, 2, 3), **changes)
    save_draft(draft, path, target_spec=read_target(folder / "target"))
    return path


def rewrite(path: Path, **keys: object) -> None:
    """Config keys replaced; None removes one. The sidecar, which would win, goes."""
    (path / "eyas.json").unlink(missing_ok=True)
    config = json.loads((path / "config.json").read_text()) | keys
    config = {key: value for key, value in config.items() if value is not None}
    (path / "config.json").write_text(json.dumps(config))


def both(capsys, folder: Path, name: str, engine: str) -> tuple[dict, dict, str]:
    """The figures as trained, the engine's entry, and the text."""
    _, document, text = checked(capsys, folder, name, "--for", engine, "-k", "3")
    return document["probe"]["trained"], document["probe"]["engines"][engine], text


def test_a_window_that_the_engine_does_not_keep_moves_the_counts(folder, capsys):
    path = variant(folder, "window", sliding_window=3)
    tensors = load_file(path / "model.safetensors")
    save_file({n.replace("layers.0.", "midlayer."): t for n, t in tensors.items()}, path / "model.safetensors")
    rewrite(path, architectures=["LlamaForCausalLMEagle3"])
    trained, found, _ = both(capsys, folder, "window", "sglang==0.5.9")

    assert "exact" in found["served"]
    assert found["served"]["exact"]["accepted_at"] != trained["accepted_at"]
    assert found["not_emulated"] == []
    kept, same, _ = both(capsys, folder, "window", "vllm==0.33.0")
    assert same["served"] == {"exact": kept}


def test_a_rope_spelling_that_the_engine_does_not_read_moves_the_counts(folder, capsys):
    path = variant(folder, "rope", rope=Rope(theta=2.0))
    rewrite(path, rope_theta=None, rope_scaling=None, rope_parameters={"rope_type": "default", "rope_theta": 2.0})
    trained, found, _ = both(capsys, folder, "rope", "sglang==0.5.9")

    assert found["served"]["exact"]["accepted_at"] != trained["accepted_at"]
    assert found["not_emulated"] == []


@pytest.mark.parametrize(("engine", "keeps_scale"), [("vllm==0.33.0", True), ("sglang==0.5.9", False)])
def test_an_fp8_draft_is_predicted_with_and_without_the_scale_of_its_fc(folder, engine, keeps_scale, capsys):
    path = variant(folder, f"fp8-{keeps_scale}")
    tensors = load_file(path / "model.safetensors")
    for name in [n for n in tensors if n.endswith("proj.weight") or n == "fc.weight"]:
        scale = tensors[name].abs().amax(1, keepdim=True) / 448
        tensors[f"{name}_scale"] = scale
        tensors[name] = (tensors[name] / scale).to(torch.float8_e4m3fn)
    save_file(tensors, path / "model.safetensors")
    rewrite(path, quantization_config={"quant_method": "compressed-tensors", "format": "float-quantized"})
    trained, found, text = both(capsys, folder, path.name, engine)

    moved = found["served"]["exact"]["accepted_at"] != trained["accepted_at"]
    assert moved is not keeps_scale
    assert found["lost"] == found["not_emulated"] == []
    assert "quantised weights computed as plain ones" in text


@pytest.mark.parametrize(("engine", "is_limited"), [("vllm==0.25.1", True), ("vllm==0.33.0", False)])
def test_texts_beyond_the_drafts_own_length_are_counted_up_to_there(folder, engine, is_limited, capsys):
    variant(folder, f"short-{is_limited}", max_position_embeddings=16)
    trained, found, text = both(capsys, folder, f"short-{is_limited}", engine)

    assert ("the first 16 tokens of each text are counted; beyond, " in text) is is_limited
    assert (found["limit"] is not None) is is_limited
    served = found["served"]["exact"]
    assert (served == trained) is not is_limited
    if is_limited:
        assert found["limit"]["tokens"] == 16
        assert served["num_requests"] == trained["num_requests"]
        assert served["rounds"] < trained["rounds"] / 2


def test_a_part_that_cannot_be_emulated_leaves_no_figure(folder, capsys):
    path = variant(folder, "off")
    config = json.loads((path / "config.json").read_text())
    rewrite(path, eagle_config={**config["eagle_config"], "use_aux_hidden_state": False})
    _, document, text = checked(capsys, folder, "off", "--for", "vllm==0.33.0", "-k", "3")

    reasons = {reason["code"] for reason in document["engines"]["vllm==0.33.0"]["reasons"]}
    assert "aux-capture-off" in reasons
    assert document["probe"]["engines"]["vllm==0.33.0"]["refused"] == "emulation-impossible"
    assert "vllm==0.33.0: no prediction: " in text
