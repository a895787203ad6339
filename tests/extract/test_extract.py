"""The stage: what a store holds is what the target computes; runs resume, share a store, are refused and stopped."""

import functools
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from eyas.cli.app import main
from eyas.contract.spec.layer_ids import AuxBoundaryBeyondTarget
from eyas.data.text.tokenise import TokenRow
from eyas.errors import EnvironmentMissing
from eyas.extract import extract as stage
from eyas.extract import fill
from eyas.extract.config import ExtractConfig, ExtractConfigInvalid
from eyas.extract.extract import extract
from eyas.extract.forecast import StoreTooLarge
from eyas.extract.open_source import require_source
from eyas.extract.plan import ExtractRequest
from eyas.extract.proof import StatesMismatch
from eyas.extract.proving import spread_by_length
from eyas.extract.source import SourceFailed, SourceUnsupported
from eyas.extract.tensors import as_tensor
from eyas.models.placement import Placement
from eyas.models.target import Target
from eyas.store import StoreReader, row_key
from eyas.store.about import StoreMismatch
from eyas.talk import Silent
from rows_folder import write_rows
from states_target import BOUNDARIES, FaultySource, saved_target, true_source
from token_rows import rows_of

CPU = Placement(torch.float32, torch.device("cpu"))
CONFIG = ExtractConfig(boundaries=BOUNDARIES, batch_tokens=64, recheck=0.3)
ROWS = rows_of(*range(5, 25))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("data") / "rows", [*ROWS, ROWS[3]])


def _request(target: Path, rows: Path, out: Path) -> ExtractRequest:
    return ExtractRequest(target=target, rows=rows, out=out, device="cpu", dtype="float32")


_loaded = functools.cache(lambda folder: Target.load(folder, CPU))


def _wanted(target: Path, row: TokenRow) -> torch.Tensor:
    """What the target computes for a row alone."""
    states = _loaded(target).forward(torch.tensor([row.token_ids]), BOUNDARIES)
    return torch.cat([states.aux, states.last], -1)[0]


def _read(reader: StoreReader, row: TokenRow) -> torch.Tensor:
    number = reader.find(row_key(row.token_ids))
    assert number is not None
    stored = reader.row(number)
    assert tuple(stored.token_ids.tolist()) == row.token_ids
    assert stored.is_supervised is not None
    assert tuple(stored.is_supervised.tolist()) == row.is_supervised
    return as_tensor(stored.states, reader.about.dtype, stored.scales)


def test_every_row_has_the_states_that_the_target_computes_and_a_repeated_row_has_them_once(
    tmp_path: Path, target: Path, rows: Path
):
    talk = Silent()
    done = extract(_request(target, rows, tmp_path / "s"), CONFIG, talk)

    assert (done.num_rows, done.num_tokens) == (20, sum(len(row.token_ids) for row in ROWS))
    assert done.num_rechecked >= 1
    assert any("1 row of" in note for note in talk.notes)
    reader = StoreReader.open(tmp_path / "s")
    assert len(reader) == 20
    for row in ROWS:
        torch.testing.assert_close(_read(reader, row), _wanted(target, row), rtol=1e-4, atol=1e-4)
    assert reader.about.boundaries == BOUNDARIES
    assert reader.about.rows == "0123456789abcdef"


def test_a_run_that_was_stopped_is_resumed_and_computes_no_row_twice(
    tmp_path: Path, target: Path, rows: Path, monkeypatch: pytest.MonkeyPatch
):
    computed = list[int]()
    states = stage.open_source

    class Counted:
        def __init__(self, *args: object, **options: object) -> None:
            self._inner = states(*args, **options)  # type: ignore[arg-type]

        def __getattr__(self, name: str) -> object:
            return getattr(self._inner, name)

        def states(self, asked):
            is_run = len(asked) > 4  # not the proof
            for found in self._inner.states(asked):
                if is_run:
                    if stop_after == len(computed):
                        raise KeyboardInterrupt
                    computed.append(found.number)
                yield found

    monkeypatch.setattr(stage, "open_source", Counted)
    stop_after = 7
    with pytest.raises(KeyboardInterrupt):
        extract(_request(target, rows, tmp_path / "s"), replace(CONFIG, reference="off"), Silent())
    assert len(StoreReader.open(tmp_path / "s")) == 7
    stop_after = -1
    done = extract(_request(target, rows, tmp_path / "s"), replace(CONFIG, reference="off"), Silent())
    assert done.num_rows == 13
    assert len(computed) == 20
    assert extract(_request(target, rows, tmp_path / "s"), CONFIG, Silent()).num_rows == 0


def test_two_writers_begin_at_different_portions(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fill, "_CHUNK_TOKENS", 1)
    planned = [fill.PlannedRow(key=str(i), number=i, num_tokens=2, supervised_from=0, first=0) for i in range(10)]
    firsts = [fill._chunks(planned, writer)[0][0].key for writer in range(4)]
    assert len(set(firsts)) == 4
    assert sorted(c[0].key for c in fill._chunks(planned, 3)) == sorted(row.key for row in planned)


@pytest.mark.parametrize("keep", [0, 3])
def test_keep_prompt_keeps_the_end_of_each_row_and_is_part_of_the_store(tmp_path: Path, target: Path, keep: int):
    rows = [TokenRow(row.token_ids, tuple(i >= 4 for i in range(len(row.token_ids)))) for row in ROWS]
    folder = write_rows(tmp_path / "rows", [*rows, TokenRow((7, 8, 9), (False,) * 3)])
    extract(_request(target, folder, tmp_path / "s"), replace(CONFIG, keep_prompt=keep), Silent())

    reader = StoreReader.open(tmp_path / "s")
    for row in rows:
        number = reader.find(row_key(row.token_ids))
        assert number is not None
        assert reader.row(number).first == 4 - keep
        torch.testing.assert_close(_read(reader, row), _wanted(target, row)[4 - keep :], rtol=1e-4, atol=1e-4)
    with pytest.raises(StoreMismatch, match=f"keep_prompt: {keep} then, None now"):
        extract(_request(target, folder, tmp_path / "s"), CONFIG, Silent())


@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 0.005), ("float16", 0.001), ("float8_e4m3", 0.04)])
def test_states_are_stored_in_the_dtype_asked_for(tmp_path: Path, target: Path, rows: Path, dtype: str, most: float):
    extract(_request(target, rows, tmp_path / "s"), replace(CONFIG, store_dtype=dtype), Silent())
    reader = StoreReader.open(tmp_path / "s")
    for row in ROWS[:3]:
        wanted = _wanted(target, row)
        error = (_read(reader, row).float() - wanted).norm() / wanted.norm()
        assert 0 < error < most


def test_states_that_do_not_fit_are_refused_before_the_first_byte_with_what_would_fit(
    tmp_path: Path, target: Path, rows: Path, monkeypatch: pytest.MonkeyPatch
):
    num = sum(len(row.token_ids) for row in ROWS)
    room = num * 4 * 32 * 4 // 2  # half of what float32 takes
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=room))
    with pytest.raises(StoreTooLarge, match="are free") as caught:
        extract(_request(target, rows, tmp_path / "s"), CONFIG, Silent())
    assert "--store-dtype float8_e4m3 (" in caught.value.do
    assert "add --keep-prompt 0 (" not in caught.value.do, "almost all tokens are supervised: it does not help"
    assert "eyas train --stream" in caught.value.do
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("after", [0, 20])
def test_a_source_that_gives_wrong_states_at_once_or_later_stops_the_run(
    tmp_path: Path, target: Path, rows: Path, monkeypatch: pytest.MonkeyPatch, after: int
):
    def faulty(*_: object, **__: object) -> FaultySource:
        return FaultySource(true_source(target), lambda values, _: values.roll(1, 0), after=after)

    monkeypatch.setattr(stage, "open_source", faulty)
    with pytest.raises(StatesMismatch, match="boundary 1: it looks like boundary 1 of 1 token earlier"):
        extract(_request(target, rows, tmp_path / "s"), replace(CONFIG, recheck=1.0), Silent())
    assert (tmp_path / "s").exists() == (after > 0), "nothing is written before the proof"


def test_states_that_are_not_finite_end_the_run(tmp_path: Path, target: Path):
    source = true_source(target)
    assert source.target is not None
    with torch.no_grad():
        source.target.parts.layers[1].mlp.down_proj.weight.fill_(float("inf"))
    from states_target import rows_of as asked_rows

    with pytest.raises(SourceFailed, match="are not finite"):
        list(source.states(asked_rows(1)))


def test_only_the_wanted_positions_are_handed_over(target: Path):
    from eyas.extract.source import AskedRow

    source = true_source(target)
    whole = next(iter(source.states([AskedRow(token_ids=ROWS[9].token_ids)])))
    part = next(iter(source.states([AskedRow(token_ids=ROWS[9].token_ids, first=6)])))
    assert part.first == 6
    assert np.array_equal(part.states, whole.states[6:])


def test_a_boundary_beyond_the_target_and_a_source_without_a_name_are_refused(tmp_path: Path, target: Path, rows: Path):
    with pytest.raises(AuxBoundaryBeyondTarget, match="--boundaries"):
        extract(_request(target, rows, tmp_path / "s"), replace(CONFIG, boundaries=(1, 7)), Silent())
    with pytest.raises(SourceUnsupported, match="neither transformers nor the URL of a server"):
        require_source("tensorflow")
    with pytest.raises(ExtractConfigInvalid, match="--recheck out of range"):
        ExtractConfig(recheck=2.0)


def test_the_command_tells_the_proof_and_the_figures(
    tmp_path: Path, target: Path, rows: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["extract", "--target", str(target), "--data", str(rows), "--out", str(tmp_path / "s"), "--device", "cpu"]
    assert main([*words, "--dry-run"]) == 0
    assert "needed" in capsys.readouterr().out
    assert not os.path.exists(tmp_path / "s")
    assert main([*words, "--boundaries", "1", "2", "4", "--json"]) == 0
    said = capsys.readouterr()
    document = json.loads(said.out.splitlines()[-1])
    assert (document["schema"], document["rows"], document["proof"]["faults"]) == ("eyas.extract/1", 20, [])
    assert "boundary 4" in said.err
    assert main([*words, "--boundaries", "1", "2", "4"]) == 0
    assert "holds all rows" in capsys.readouterr().out


def test_more_gpus_than_there_are_are_refused(target: Path):
    source = true_source(target)
    source.target, source.gpus = None, 65
    source.placement = Placement(torch.bfloat16, torch.device("cuda"))
    with pytest.raises(EnvironmentMissing, match="there are not 65 GPUs"):
        source.probe()


def test_states_too_large_for_the_dtype_of_the_store_are_refused(tmp_path: Path, target: Path, rows: Path):
    large = tmp_path / "large"
    shutil.copytree(target, large)
    model = Target.load(large, CPU).model
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1e6)
    model.save_pretrained(large)
    with pytest.raises(ExtractConfigInvalid, match="the states do not fit float16"):
        extract(_request(large, rows, tmp_path / "s"), replace(CONFIG, store_dtype="float16"), Silent())


def test_rows_that_prove_a_source_are_of_all_lengths():
    assert spread_by_length([5, 1, 9, 3, 7], 3) == [1, 0, 2]
    assert spread_by_length([4], 8) == [0]
