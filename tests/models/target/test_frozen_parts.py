import json
import resource
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.contract.files.read_checkpoint import read_checkpoint
from eyas.contract.spec.target_parts import TargetPartMissing, name_parts
from eyas.contract.spec.target_spec import read_target
from eyas.models.placement import Placement
from eyas.models.target import FrozenParts, Target
from eyas.models.target.loading import find_target_parts
from tiny_target import CONFIGS, NESTED, tiny_target

CPU = Placement(torch.float32, torch.device("cpu"))
BY_NORM = ["llama", "gemma2", "cohere", "granite", "lfm2", "qwen3_next", "kimi_k25", "gemma3", "llama4"]
OTHERS = [kind for kind in (*CONFIGS, *NESTED) if kind not in BY_NORM]


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("kind", [*BY_NORM, *(pytest.param(kind, marks=pytest.mark.soak) for kind in OTHERS)])
def test_three_tensors_of_the_files_are_those_that_the_whole_model_computes_with(kind: str, tmp_path: Path):
    model = tiny_target(kind)
    with torch.no_grad():
        find_target_parts(model).final_norm.weight.uniform_(0.2, 2.0)  # of ones, 1 + w and w could not be told apart
    model.save_pretrained(tmp_path)
    target = Target(model)
    states = target.forward(torch.tensor([[5, 9, 2, 30, 7]]), [target.num_layers])

    found = FrozenParts.load(tmp_path, CPU)

    assert (found.vocab_size, found.hidden_size, found.num_layers) == (64, 32, 4)
    assert torch.equal(found.embedding, target.parts.embedding)
    assert torch.equal(found.head, target.parts.head)
    assert torch.allclose(found.final_norm(states.aux), states.last, rtol=1e-5, atol=1e-6)
    assert torch.equal(found.logits(states.last), target.logits(states.last))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("prefix", ["model.", "language_model.model.", "model.language_model.", ""])
def test_parts_are_found_under_any_wrapper_and_beside_a_second_embedding(prefix: str, tied: bool, tmp_path: Path):
    write_headers(tmp_path, prefix, tie_word_embeddings=tied)

    names = name_parts(read_target(tmp_path), read_checkpoint(tmp_path).tensors)

    outer = "language_model." if prefix.startswith("language_model.") else ""
    assert names.embedding == f"{prefix}embed_tokens.weight"
    assert (names.norm, names.norm_bias) == (f"{prefix}norm.weight", None)
    assert names.head == (names.embedding if tied else f"{outer}lm_head.weight")


def write_headers(folder: Path, prefix: str, **config: object) -> None:
    outer = "language_model." if prefix.startswith("language_model.") else ""
    tensors = {
        f"{prefix}layers.9.embed_tokens.weight": torch.zeros(64, 32),  # of multi-token prediction
        f"{prefix}layers.9.shared_head.norm.weight": torch.zeros(32),
        "vision_tower.embeddings.weight": torch.zeros(9, 32),
        f"{prefix}embed_tokens.weight": torch.zeros(64, 32),
        f"{prefix}norm.weight": torch.ones(32),
        f"{outer}lm_head.weight": torch.zeros(64, 32),
    }
    save_file(tensors, folder / "model.safetensors")
    sizes = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 9, "vocab_size": 64}
    (folder / "config.json").write_text(json.dumps(sizes | config))


@pytest.mark.parametrize("part", ["embed_tokens", "norm", "lm_head"])
def test_a_part_that_is_missing_is_named(part: str, tmp_path: Path):
    tiny_target("llama").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({n: w for n, w in weights.items() if n.split(".")[-2] != part}, tmp_path / "model.safetensors")
    what = {"embed_tokens": "token embedding", "norm": "final norm", "lm_head": "output head"}[part]
    with pytest.raises(TargetPartMissing, match=f"no {what} that eyas finds"):
        FrozenParts.load(tmp_path, CPU)


def test_a_quantised_head_a_head_with_a_bias_and_an_unknown_norm_are_refused(tmp_path: Path):
    tiny_target("llama").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    packed = {n: w for n, w in weights.items() if n != "lm_head.weight"}
    save_file(packed | {"lm_head.weight_packed": torch.zeros(64, 4, dtype=torch.int32)}, tmp_path / "model.safetensors")
    with pytest.raises(TargetPartMissing, match=r"output head[^=]*\n[^=]*= why: it is quantised"):
        FrozenParts.load(tmp_path, CPU)
    save_file(weights | {"lm_head.bias": torch.zeros(64)}, tmp_path / "model.safetensors")
    with pytest.raises(TargetPartMissing, match=r"lm_head\.bias"):
        FrozenParts.load(tmp_path, CPU)
    save_file(weights, tmp_path / "model.safetensors")
    for kind in ("nanochat", "not-a-kind"):
        edit_config(tmp_path, model_type=kind)
        with pytest.raises(TargetPartMissing, match=f"the final norm of a {kind} is not known"):
            FrozenParts.load(tmp_path, CPU)


def test_of_a_file_of_50_gb_only_the_parts_are_read(tmp_path: Path):
    model = tiny_target("llama")
    model.config.save_pretrained(tmp_path)
    weights = model.state_dict()
    path, size, header, at = tmp_path / "model.safetensors", 50 << 30, dict[str, object](), 0
    header["model.layers.0.mlp.huge.weight"] = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}
    at, data = size, bytearray()
    for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"):
        bytes_ = weights[name].numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(weights[name].shape), "data_offsets": [at, at + len(bytes_)]}
        at, data = at + len(bytes_), data + bytes_
    text = json.dumps(header).encode()
    with path.open("wb") as file:  # sparse: the 50 GB take no disk
        file.write(struct.pack("<Q", len(text)) + text)
        file.seek(8 + len(text) + size)
        file.write(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    found = FrozenParts.load(tmp_path, CPU)

    assert torch.equal(found.head, weights["lm_head.weight"])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KiB
