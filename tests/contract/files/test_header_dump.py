"""A header dump carries no weights and no paths, and means the same as the folder it was made of."""

import json
from pathlib import Path

import pytest

from drafts import TARGET_LAYERS, DraftBuild, write_draft, write_target
from eyas.contract.files.header_dump import DumpInvalid, dump_document
from eyas.contract.files.read_checkpoint import CheckpointEmpty, read_checkpoint
from eyas.contract.reading.draft_findings import draft_findings
from eyas.contract.reading.read_draft import read_draft
from eyas.contract.spec.target_spec import read_target


def dump(path: Path, out: Path) -> Path:
    out.write_text(json.dumps(dump_document(read_checkpoint(path))))
    return out


def test_a_dump_reads_back_with_the_same_meaning(tmp_path: Path):
    folder = write_draft(tmp_path / "draft", norm_output=True, fc_norm=True, aux=(1, 4))
    of_folder = read_draft(read_checkpoint(folder))
    of_dump = read_draft(read_checkpoint(dump(folder, tmp_path / "x.json")))

    switches = ("residual", "aux_norm", "feedback", "aux_boundaries", "num_aux", "rope", "embedding", "head", "dialect")
    for name in switches:
        assert getattr(of_dump.spec, name) == getattr(of_folder.spec, name), name
    codes = [[f.code for f in draft_findings(reading)] for reading in (of_folder, of_dump)]
    assert codes[0] == codes[1]
    assert of_dump.int_maps["d2t"].digest == of_folder.int_maps["d2t"].digest
    assert of_dump.int_maps["d2t"].values is None


def test_a_damaged_map_is_found_in_a_dump_too(tmp_path: Path):
    folder = write_draft(tmp_path / "draft")
    document = dump_document(read_checkpoint(folder))
    absolute = document["int_maps"]["d2t"]
    absolute["digest"], absolute["digest_absolute"] = "0" * 16, document["int_maps"]["t2d"]["digest"]
    (tmp_path / "x.json").write_text(json.dumps(document))

    codes = {f.code for f in draft_findings(read_draft(read_checkpoint(tmp_path / "x.json")))}

    assert "d2t-absolute" in codes


def test_a_dump_has_no_absolute_path_and_no_map_values(tmp_path: Path):
    folder = write_draft(
        tmp_path / "draft", extra_config={"_name_or_path": str(tmp_path / "secret" / "run7"), "x": ["~/home/me"]}
    )
    text = json.dumps(dump_document(read_checkpoint(folder)))
    assert str(tmp_path) not in text
    assert "~/home" not in text
    assert "/.../run7" in text
    assert "values" not in text


def test_a_targets_dump_gives_the_same_target(tmp_path: Path):
    folder = write_target(tmp_path / "target")
    one, two = read_target(folder), read_target(dump(folder, tmp_path / "x.json"))
    assert (one.hidden_size, one.num_layers, one.fingerprint) == (two.hidden_size, two.num_layers, two.fingerprint)
    assert one.num_layers == TARGET_LAYERS


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema", "eyas.header/9"),
        ("config", []),
        ("tensors", {"a": {"dtype": "F32", "shape": [-1]}}),
        ("tensors", {"a": {"dtype": "X", "shape": [1]}}),
        ("tensors", {"a\x1b": {"dtype": "F32", "shape": [1]}}),
        ("tensors", []),
        ("tensors", {}),  # its maps are of none
        ("int_maps", {"d2t": {}}),
        ("metadata", {"a": 1}),
        ("files", "a"),
    ],
)
def test_an_edited_dump_is_refused(tmp_path: Path, key: str, value: object):
    document = dump_document(read_checkpoint(write_draft(tmp_path / "draft", DraftBuild())))
    document[key] = value
    (tmp_path / "x.json").write_text(json.dumps(document))
    with pytest.raises(DumpInvalid):
        read_checkpoint(tmp_path / "x.json")


def test_another_json_is_not_taken_for_a_dump(tmp_path: Path):
    (tmp_path / "x.json").write_text('{"schema": "other"}')
    with pytest.raises(CheckpointEmpty):
        read_checkpoint(tmp_path / "x.json")
