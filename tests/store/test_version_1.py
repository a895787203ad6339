"""Stores of schema eyas.store/1 as its first version wrote them (`version_1/`) stay readable and can be appended to."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from eyas.store import StoreReader, StoreWriter
from eyas.store.verify import verify
from eyas.talk import Silent
from stored_rows import about, stored_row

_KEYS = {
    "bf16": [
        "854210d6ffa50553f96280380d68f194",
        "71690e6228dd058e019c8a89b6fd2443",
        "ca784df0e6ab4ed8b0a7301fb8e29a07",
        "1cb47fbf88ce550d116ee8302bdd8065",
        "0f85c3e0ddaf230f51ec0473c099dc68",
    ],
    "fp8": [
        "854210d6ffa50553f96280380d68f194",
        "71690e6228dd058e019c8a89b6fd2443",
        "ca784df0e6ab4ed8b0a7301fb8e29a07",
        "1cb47fbf88ce550d116ee8302bdd8065",
        "0f85c3e0ddaf230f51ec0473c099dc68",
    ],
}
_SUMS = {"bf16": [56569, 39448, 53515, 53959, 48266], "fp8": [56569, 39448, 53515, 53959, 48266]}


@pytest.mark.parametrize("name", ["bf16", "fp8"])
def test_a_store_of_version_1_is_read_verified_and_appended_to(tmp_path: Path, name: str):
    folder = tmp_path / name
    shutil.copytree(Path(__file__).parent / "version_1" / name, folder)

    assert verify(folder, Silent()).num_faults == 0
    reader = StoreReader.open(folder)
    assert list(reader.keys) == _KEYS[name]
    assert [int(reader.row(i).states.astype(np.int64).sum()) for i in range(5)] == _SUMS[name]
    assert [shard.is_finished for shard in reader.shards] == [True, False]
    with StoreWriter.open(folder, about("bfloat16" if name == "bf16" else "float8_e4m3")) as writer:
        assert writer.repaired == []
        assert writer.append(stored_row(99, writer.about))
    assert len(StoreReader.open(folder)) == 6
