from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from eyas.contract.files.safetensors_header import HeaderInvalid, read_safetensors_header
from eyas.models.target_folder import fingerprint_weights

NAMES = [f"model.layers.{i}.{kind}.weight" for i in range(40) for kind in ("q_proj", "up_proj")]


def weights() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal((64, 256), np.float32) for name in NAMES}


def print_of(folder: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None) -> str:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file(tensors, folder / "model.safetensors", metadata)
    return fingerprint_weights(folder)


def test_the_same_weights_have_one_fingerprint(tmp_path: Path):
    assert print_of(tmp_path / "a", weights()) == print_of(tmp_path / "b", weights())


@pytest.mark.parametrize("name", NAMES[3::7])
def test_a_tensor_that_was_trained_alone_is_seen_wherever_it_lies(name: str, tmp_path: Path):
    trained = weights()
    trained[name] += 1e-3
    assert print_of(tmp_path / "a", weights()) != print_of(tmp_path / "b", trained)


@pytest.mark.parametrize("at", ["first", "middle", "last"])
def test_a_byte_at_start_middle_and_end_is_seen(at: str, tmp_path: Path):
    before = print_of(tmp_path / "a", weights())
    path = tmp_path / "a" / "model.safetensors"
    size, begin = path.stat().st_size, read_safetensors_header(path).data_begin
    place = {"first": begin, "middle": size // 2 + 5, "last": size - 1}[at]
    with open(path, "r+b") as file:
        file.seek(place)
        old = file.read(1)
        file.seek(place)
        file.write(bytes([old[0] ^ 1]))
    assert fingerprint_weights(tmp_path / "a") != before


def test_a_header_is_read_to_its_end(tmp_path: Path):
    """Another name between the samples that a file has besides, over the same data."""
    many = {f"{'x' * 200}.{i:04}": np.zeros(4, np.float32) for i in range(3000)}
    first = print_of(tmp_path / "a", many)
    path = tmp_path / "a" / "model.safetensors"
    data = path.read_bytes()
    assert 1 << 16 < data.index(b".0600") < len(data) // 2
    path.write_bytes(data.replace(b".0600", b".3000", 1))
    assert fingerprint_weights(tmp_path / "a") != first


def test_of_very_many_tensors_some_are_read_and_always_the_same(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("eyas.models.target_folder.resolve._MOST_TENSORS", 5)
    whole = print_of(tmp_path / "whole", weights())
    assert print_of(tmp_path / "again", weights()) == whole
    seen = 0
    for i, name in enumerate(NAMES):
        trained = weights()
        trained[name][32, 4:-4] += 1e-3  # out of reach of the samples a file has besides
        seen += print_of(tmp_path / str(i), trained) != whole
    assert 5 <= seen <= 8


def test_what_is_no_safetensors_file_is_refused(tmp_path: Path):
    print_of(tmp_path / "a", weights())
    (tmp_path / "a" / "model.safetensors").write_bytes(b"\x02" + b"\0" * 7 + b"[]" + b"w" * 99)
    with pytest.raises(HeaderInvalid):
        fingerprint_weights(tmp_path / "a")
