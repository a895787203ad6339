"""A target is known from its config alone: through wrappers, both spellings of RoPE, ties, quantisation."""

import json
from pathlib import Path
from typing import Any

import pytest

from drafts import target_config, write_target
from eyas.contract.convert.target_embedding import TargetEmbedding, find_target_embedding
from eyas.contract.files.read_checkpoint import CheckpointNotFound
from eyas.contract.spec.target_spec import TargetConfigIncomplete, TargetSpec, read_target


def target(tmp_path: Path, config: dict[str, Any]) -> TargetSpec:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return read_target(tmp_path)


def test_a_plain_config(tmp_path: Path):
    spec = target(tmp_path, target_config())
    assert (spec.hidden_size, spec.num_layers, spec.vocab_size, spec.rope.theta) == (16, 12, 64, 500000.0)
    assert spec.text_path == ()
    assert not spec.tie_word_embeddings


@pytest.mark.parametrize("path", [("text_config",), ("thinker_config", "text_config"), ("llm_config",)])
def test_the_language_model_is_found_inside_wrappers(tmp_path: Path, path: tuple[str, ...]):
    config: dict[str, Any] = {**target_config(), "model_type": "inner"}
    for key in reversed(path):
        config = {"model_type": "outer", key: config, "vision_config": {"hidden_size": 7, "num_hidden_layers": 3}}
    spec = target(tmp_path, {**config, "hidden_size": 999, "num_hidden_layers": 1, "architectures": ["Outer"]})
    assert (spec.model_type, spec.text_model_type, spec.text_path) == ("outer", "inner", path)
    assert (spec.hidden_size, spec.num_layers) == (16, 12)


def test_old_names_of_sizes_are_known(tmp_path: Path):
    spec = target(tmp_path, {"model_type": "gpt2", "n_embd": 8, "n_layer": 3, "vocab_size": 5, "n_head": 2})
    assert (spec.hidden_size, spec.num_layers, spec.head_dim, spec.tie_word_embeddings) == (8, 3, 4, True)


def test_a_tie_is_found_at_either_level_and_by_class_default(tmp_path: Path):
    assert target(tmp_path, {**target_config(), "tie_word_embeddings": True}).tie_word_embeddings
    assert target(tmp_path, {**target_config(), "model_type": "gemma3_text"}).tie_word_embeddings


@pytest.mark.parametrize(
    ("quant", "method", "head"),
    [
        ({"quant_method": "fp8"}, "fp8", False),
        ({"quant_method": "compressed-tensors", "ignore": ["lm_head"]}, "compressed-tensors", False),
        ({"quant_method": "compressed-tensors", "ignore": []}, "compressed-tensors", None),
        ({"quant_method": "gptq", "lm_head": True}, "gptq", True),
    ],
)
def test_quantisation_and_its_head(tmp_path: Path, quant: dict[str, Any], method: str, head: bool | None):
    spec = target(tmp_path, {**target_config(), "quantization_config": quant})
    assert (spec.quantization, spec.is_head_quantized) == (method, head)


def test_the_fingerprint_is_of_the_function_not_of_the_run(tmp_path: Path):
    one = target(tmp_path, {**target_config(), "transformers_version": "4.0", "_name_or_path": "/a"})
    two = target(tmp_path, {**target_config(), "transformers_version": "5.0"})
    other = target(tmp_path, {**target_config(), "rope_theta": 1.0})
    assert one.fingerprint == two.fingerprint != other.fingerprint


def test_a_config_without_sizes_is_refused(tmp_path: Path):
    with pytest.raises(TargetConfigIncomplete):
        target(tmp_path, {"model_type": "llama", "vision_config": {"hidden_size": 1, "num_hidden_layers": 2}})


def test_a_folder_without_a_config_is_refused(tmp_path: Path):
    with pytest.raises(CheckpointNotFound):
        read_target(tmp_path)


def test_the_embedding_is_found_by_shape(tmp_path: Path):
    folder = write_target(tmp_path / "t")
    found = find_target_embedding(folder, (64, 16))
    assert isinstance(found, TargetEmbedding)
    assert found.name == "model.embed_tokens.weight"
    assert "no embedding of the shape" in str(find_target_embedding(folder, (64, 17)))
    assert "no weights" in str(find_target_embedding(write_target(tmp_path / "u", weights=False), (64, 16)))
    assert "without its weights" in str(find_target_embedding(tmp_path / "none", (64, 16)))
