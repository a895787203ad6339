"""Every container is read to the same `Checkpoint`; an index stays in its folder; contradictions are named."""

import json
import os
from array import array
from pathlib import Path

import pytest

from drafts import DraftBuild, draft_ids, safetensors_bytes, tensors, write_draft, write_folder
from eyas.contract.files.json_file import FileUnreadable, JsonDuplicateKey, JsonInvalid, JsonTooLarge, read_json
from eyas.contract.files.read_checkpoint import (
    CheckpointEmpty,
    CheckpointNotFound,
    IndexedTensorMissing,
    TensorTwice,
    read_checkpoint,
)
from eyas.contract.files.weight_files import IndexInvalid, PathEscape, ShardMissing


def shard(folder: Path, **changes: str) -> Path:
    """A draft in two shards with its index; `changes` overrides entries of the weight map."""
    found = tensors(DraftBuild())
    folder.mkdir(exist_ok=True)
    names = sorted(found)
    parts = {"model-1-of-2.safetensors": names[:5], "model-2-of-2.safetensors": names[5:]}
    for file, part in parts.items():
        (folder / file).write_bytes(safetensors_bytes({name: found[name] for name in part}))
    weight_map = {name: file for file, part in parts.items() for name in part} | changes
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text("{}")
    return folder


def test_one_file_shards_and_a_bare_file_give_the_same_tensors(tmp_path: Path):
    single = write_folder(tmp_path / "single", {}, tensors(DraftBuild()))

    tables = [
        {name: (i.dtype, i.shape) for name, i in read_checkpoint(path).tensors.items()}
        for path in (single, shard(tmp_path / "sharded"), single / "model.safetensors")
    ]

    assert tables[0] == tables[1] == tables[2]
    assert len(tables[0]) == len(tensors(DraftBuild()))


def test_a_bin_and_its_shards_are_read(tmp_path: Path):
    torch = pytest.importorskip("torch")
    torch.save({"fc.weight": torch.ones(2, 3)}, tmp_path / "pytorch_model.bin")
    torch.save({"optimizer": torch.ones(2)}, tmp_path / "training_args.bin")

    checkpoint = read_checkpoint(tmp_path)

    assert checkpoint.files == ("pytorch_model.bin",)
    assert checkpoint.tensors["fc.weight"].shape == (2, 3)


def test_integer_maps_are_read_with_their_summary(tmp_path: Path):
    build = DraftBuild()
    maps = read_checkpoint(write_draft(tmp_path, build)).int_maps

    ids = draft_ids(build)
    assert maps["d2t"].values == array("q", [t - i for i, t in enumerate(ids)])
    assert (maps["d2t"].ids_minimum, maps["d2t"].ids_maximum) == (min(ids), max(ids))
    assert maps["d2t"].ids_strictly_increasing
    assert maps["t2d"].num_true == len(ids)
    assert maps["d2t"].digest == maps["t2d"].digest
    assert maps["d2t"].digest != maps["d2t"].digest_absolute


def test_maps_in_a_bin_are_read_from_their_records(tmp_path: Path):
    torch = pytest.importorskip("torch")
    ids = draft_ids(DraftBuild())
    mask = torch.zeros(64, dtype=torch.bool)
    mask[ids] = True
    torch.save({"d2t": torch.tensor(ids) - torch.arange(len(ids)), "t2d": mask}, tmp_path / "pytorch_model.bin")

    maps = read_checkpoint(tmp_path).int_maps

    assert maps["d2t"].digest == maps["t2d"].digest


@pytest.mark.parametrize("bad", [("F32", (4,), b"\0" * 16), ("I64", (2, 2), b"\0" * 32), ("BF16", (4,), b"\0" * 8)])
def test_a_map_that_is_no_list_of_integers_is_left_out(tmp_path: Path, bad: tuple[str, tuple[int, ...], bytes]):
    assert read_checkpoint(write_folder(tmp_path, {}, {"d2t": bad})).int_maps == {}


@pytest.mark.parametrize(
    "name",
    [
        "../evil.safetensors",
        "/etc/passwd",
        "sub/evil.safetensors",
        "..",
        "",
        "a\\b.safetensors",
        "x\0y.safetensors",
        ".",
    ],
)
def test_an_index_cannot_lead_out_of_its_folder(tmp_path: Path, name: str):
    (tmp_path / "evil.safetensors").write_bytes(safetensors_bytes({"fc.weight": ("F32", (1,), b"1234")}))

    with pytest.raises(PathEscape):
        read_checkpoint(shard(tmp_path / "draft", **{"fc.weight": name}))


def test_a_link_is_followed_to_a_weight_file_and_to_the_hub_cache_alone(tmp_path: Path):
    outside = tmp_path / "other" / "part-1.safetensors"
    outside.parent.mkdir()
    outside.write_bytes(safetensors_bytes({"fc.weight": ("F32", (1,), b"1234")}))
    linked = tmp_path / "draft"
    linked.mkdir()
    (linked / "model.safetensors").symlink_to(outside)
    assert list(read_checkpoint(linked).tensors) == ["fc.weight"]
    secret = outside.with_name("id_rsa")
    os.rename(outside, secret)
    (linked / "model.safetensors").unlink()
    (linked / "model.safetensors").symlink_to(secret)
    with pytest.raises(PathEscape, match="neither a weight file nor"):
        read_checkpoint(linked)
    outside = secret

    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    os.rename(outside, blobs / "0123")
    (snapshot / "model.safetensors").symlink_to("../../blobs/0123")
    assert list(read_checkpoint(snapshot).tensors) == ["fc.weight"]


def test_a_loop_of_links_is_refused(tmp_path: Path):
    (tmp_path / "model.safetensors").symlink_to("model.safetensors")
    with pytest.raises((PathEscape, FileUnreadable)):
        read_checkpoint(tmp_path)


def test_an_index_that_names_a_tensor_its_file_lacks_is_an_error(tmp_path: Path):
    with pytest.raises(IndexedTensorMissing, match="nothere"):
        read_checkpoint(shard(tmp_path / "a", nothere="model-1-of-2.safetensors"))
    with pytest.raises(IndexedTensorMissing, match=r"fc\.weight"):
        read_checkpoint(shard(tmp_path / "b", **{"fc.weight": "model-2-of-2.safetensors"}))


def test_a_shard_that_is_missing_is_named(tmp_path: Path):
    folder = shard(tmp_path / "draft")
    (folder / "model-2-of-2.safetensors").unlink()
    with pytest.raises(FileUnreadable, match="model-2-of-2"):
        read_checkpoint(folder)


def test_a_tensor_in_two_files_is_an_error(tmp_path: Path):
    write_draft(tmp_path)
    (tmp_path / "other.safetensors").write_bytes(safetensors_bytes({"fc.weight": ("F32", (1,), b"1234")}))
    with pytest.raises(TensorTwice, match=r"fc\.weight"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("text", ["[]", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "{}"])
def test_an_index_without_a_map_is_an_error(tmp_path: Path, text: str):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises((IndexInvalid, JsonInvalid)):
        read_checkpoint(tmp_path)


def test_safetensors_beside_a_bin_are_taken_and_it_is_said(tmp_path: Path):
    write_draft(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"not read")
    assert "pytorch_model.bin" in read_checkpoint(tmp_path).notes[0]


def test_a_bare_config_is_a_checkpoint_without_tensors(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    for path in (tmp_path, tmp_path / "config.json"):
        checkpoint = read_checkpoint(path)
        assert checkpoint.config == {"model_type": "llama"}
        assert checkpoint.tensors == {}


def test_nothing_there_is_said_plainly(tmp_path: Path):
    with pytest.raises(CheckpointNotFound):
        read_checkpoint(tmp_path / "none")
    with pytest.raises(CheckpointEmpty):
        read_checkpoint(tmp_path)
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointEmpty):
        read_checkpoint(tmp_path / "x.gguf")


def test_a_config_with_a_key_twice_is_an_error(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"rope_theta": 1, "rope_theta": 2}')
    with pytest.raises(JsonDuplicateKey, match="rope_theta"):
        read_checkpoint(tmp_path)


def test_a_json_file_beyond_its_limit_is_not_read(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"a": "' + "x" * 100 + '"}')
    with pytest.raises(JsonTooLarge):
        read_json(tmp_path / "config.json", limit_bytes=50)


def test_tokenizer_and_template_have_fingerprints(tmp_path: Path):
    write_draft(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "hello", "tokenizer_class": "T", "added": 1}')
    checkpoint = read_checkpoint(tmp_path)
    assert {"tokenizer.json", "chat_template"} <= set(checkpoint.hashes)
    assert checkpoint.extra["tokenizer_config.json"] == {"tokenizer_class": "T"}


def test_one_shard_of_two_without_an_index_is_named_as_half(tmp_path: Path):
    folder = write_folder(tmp_path / "half", {}, tensors(DraftBuild()))
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")

    with pytest.raises(ShardMissing, match="but not number 2"):
        read_checkpoint(folder)


def test_all_shards_without_an_index_are_read_together(tmp_path: Path):
    folder = shard(tmp_path / "whole")
    (folder / "model.safetensors.index.json").unlink()
    for number in (1, 2):
        (folder / f"model-{number}-of-2.safetensors").rename(folder / f"model-0000{number}-of-00002.safetensors")

    assert set(read_checkpoint(folder).tensors) == set(tensors(DraftBuild()))
