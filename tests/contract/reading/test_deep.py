"""`--deep`: what only the data show, with and without numpy, and never on a draft that is healthy."""

import json
import random
import struct
import sys
from pathlib import Path

import pytest

from eyas.contract.check.check import CheckOptions, check
from eyas.contract.engines.registry import parse_engine
from eyas.contract.files import tensor_sample
from eyas.contract.files.read_checkpoint import read_checkpoint, read_target_checkpoint

H, VOCAB, DRAFT_VOCAB = 64, 256, 96
LAYER = "midlayer"
SHAPES = {
    "fc.weight": (H, 3 * H),
    f"{LAYER}.input_layernorm.weight": (H,),
    f"{LAYER}.hidden_norm.weight": (H,),
    f"{LAYER}.post_attention_layernorm.weight": (H,),
    f"{LAYER}.self_attn.q_proj.weight": (H, 2 * H),
    f"{LAYER}.self_attn.k_proj.weight": (H, 2 * H),
    f"{LAYER}.self_attn.v_proj.weight": (H, 2 * H),
    f"{LAYER}.self_attn.o_proj.weight": (H, H),
    f"{LAYER}.mlp.gate_proj.weight": (128, H),
    f"{LAYER}.mlp.up_proj.weight": (128, H),
    f"{LAYER}.mlp.down_proj.weight": (H, 128),
    "norm.weight": (H,),
    "lm_head.weight": (DRAFT_VOCAB, H),
}
CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": H,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCAB,
    "draft_vocab_size": DRAFT_VOCAB,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
TARGET = {**CONFIG, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 12, "tie_word_embeddings": True}
RNG = random.Random(3)
IDS = sorted([*range(16), *RNG.sample(range(16, VOCAB), DRAFT_VOCAB - 16)])


def _noise(count, scale=0.05, seed=0):
    # heavier tails than a fresh init: what trained weights look like
    rng = random.Random(seed)
    return [rng.gauss(0, scale) * (3.0 if rng.random() < 0.1 else 1.0) for _ in range(count)]


TARGET_EMBEDDING = _noise(VOCAB * H, seed=99)


def _row(values, index):
    return values[index * H : (index + 1) * H]


def _write(folder: Path, config: dict, tensors: dict[str, list[float]], shapes: dict, maps=None) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, blobs, at = {}, [], 0
    for name, values in (maps or {}).items():
        blob = struct.pack(f"<{len(values)}q", *values)
        header[name] = {"dtype": "I64", "shape": [len(values)], "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    for name, values in tensors.items():
        blob = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": list(shapes[name]), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    return folder


def _draft(tmp_path, name="draft", **changed):
    tensors = {}
    for seed, (tensor, shape) in enumerate(SHAPES.items()):
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        values = _noise(count, seed=seed)
        tensors[tensor] = [1.0 + v for v in values] if len(shape) == 1 else values
    tensors.update(changed)
    shapes = {**SHAPES, "embed_tokens.weight": (VOCAB, H)}
    maps = {"d2t": [t - i for i, t in enumerate(IDS)]}
    return read_checkpoint(_write(tmp_path / name, CONFIG, tensors, shapes, maps))


def _target(tmp_path):
    shapes = {"model.embed_tokens.weight": (VOCAB, H)}
    folder = _write(tmp_path / "target", TARGET, {"model.embed_tokens.weight": TARGET_EMBEDDING}, shapes)
    return read_target_checkpoint(folder, weights=True)


def _codes(draft, target=None, engines=()):
    report = check(draft, target, [parse_engine(e) for e in engines], CheckOptions(deep=True))
    return {f.code: f for f in report.findings if f.severity != "note"}, report


@pytest.fixture(params=["numpy", "plain python"])
def reader(request, monkeypatch):
    """Both ways of reading give the same judgement."""
    if request.param == "plain python":
        monkeypatch.setitem(sys.modules, "numpy", None)
    else:
        pytest.importorskip("numpy")


def test_a_healthy_draft_has_nothing_to_report(reader, tmp_path):
    found, _ = _codes(_draft(tmp_path), _target(tmp_path), ["sglang==0.5.23", "vllm==0.33.0"])

    assert found == {}


def test_one_nan_is_found(reader, tmp_path):
    values = _noise(H * 3 * H)
    values[5000] = float("nan")

    found, _ = _codes(_draft(tmp_path, **{"fc.weight": values}))

    assert found["values-not-finite"].severity == "fatal"
    assert "fc.weight" in found["values-not-finite"].what


def test_values_between_samples_are_said_not_to_be_seen(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "numpy", None)
    draft = _draft(tmp_path)
    notes = []
    for limit in (1 << 15, 1 << 10):
        monkeypatch.setattr(tensor_sample, "_SAMPLED_VALUES", limit)
        notes.append([f.what for f in _codes(draft)[1].findings if f.code == "deep-sampled"])

    assert notes == [[], ["9 tensors were looked at in samples"]]


def test_a_tensor_never_written_is_found(reader, tmp_path):
    found, _ = _codes(_draft(tmp_path, **{f"{LAYER}.mlp.up_proj.weight": [0.0] * (128 * H)}))

    assert "up_proj" in found["values-constant"].what


def test_a_fresh_linear_is_told_from_a_trained_one(reader, tmp_path):
    rng, bound = random.Random(1), 1 / (2 * H) ** 0.5
    fresh = [rng.uniform(-bound, bound) for _ in range(H * 2 * H)]

    found, _ = _codes(_draft(tmp_path, **{f"{LAYER}.self_attn.q_proj.weight": fresh}))

    assert found["values-look-untrained"].severity == "warning"


def test_a_random_embedding_hurts_vllm_and_not_sglang(reader, tmp_path):
    draft = _draft(tmp_path, **{"embed_tokens.weight": _noise(VOCAB * H, seed=1234)})

    found, report = _codes(draft, _target(tmp_path), ["sglang==0.5.23", "vllm==0.33.0"])

    assert "embedding-random" in found
    assert report.ledgers["sglang==0.5.23"].verdict == "ok"
    assert report.ledgers["vllm==0.33.0"].verdict == "silent-damage"
    assert report.ledgers["vllm==0.33.0"].severity == "fatal"


def test_the_targets_own_embedding_is_only_a_note(reader, tmp_path):
    draft = _draft(tmp_path, **{"embed_tokens.weight": TARGET_EMBEDDING})

    found, report = _codes(draft, _target(tmp_path), ["vllm==0.33.0"])

    assert found == {}
    assert report.ledgers["vllm==0.33.0"].verdict == "ok"


def test_torchspecs_head_sliced_by_offsets_is_recognised_without_the_target(reader, tmp_path):
    offsets = [t - i for i, t in enumerate(IDS)]
    sliced = [v for o in offsets for v in _row(TARGET_EMBEDDING, o)]

    found, _ = _codes(_draft(tmp_path, **{"lm_head.weight": sliced}))

    assert found["head-sliced-by-offsets"].severity == "fatal"


def test_a_head_of_the_targets_first_rows_disagrees_with_d2t(reader, tmp_path):
    first = TARGET_EMBEDDING[: DRAFT_VOCAB * H]

    found, _ = _codes(_draft(tmp_path, **{"lm_head.weight": first}), _target(tmp_path))

    assert found["head-rows-disagree"].severity == "fatal"
    assert "first rows" in found["head-rows-disagree"].what


def test_a_frozen_head_by_d2t_is_fine(reader, tmp_path):
    frozen = [v for t in IDS for v in _row(TARGET_EMBEDDING, t)]

    found, report = _codes(_draft(tmp_path, **{"lm_head.weight": frozen}), _target(tmp_path))

    assert found == {}
    assert any(f.code == "head-frozen" for f in report.findings)
