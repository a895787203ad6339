"""States from a server that `serve --capture` set up: our start-up module inside a fake SGLang with a real tiny model.

The fake has SGLang's names and signatures; that the real versions have them too is tested from what was read of each
(`tests/contract/engines/test_capture_entry_points.py`), and on GPUs by `benchmarks/capture_h200.py`.
"""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from capturing_server import BOUNDARIES, Server
from eyas.contract.spec.target_spec import read_target
from eyas.extract.config import ExtractConfig
from eyas.extract.extract import extract
from eyas.extract.plan import ExtractRequest
from eyas.extract.server_source import ServerSource
from eyas.extract.source import AskedRow, SourceFailed, SourceUnsupported, Wanted
from eyas.store import StoreReader
from eyas.talk import Silent
from rows_folder import write_rows
from states_target import saved_target
from token_rows import rows_of as token_rows_of


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_target(tmp_path_factory.mktemp("target"), num_layers=4)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, target: Path) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("server"), target).wait()
    yield started
    started.kill()


def wanted(target: Path, boundaries: tuple[int, ...] = BOUNDARIES) -> Wanted:
    return Wanted(folder=target, target=read_target(target), boundaries=boundaries, dtype="float32")


def rows(*lengths: int, seed: int = 0) -> list[AskedRow]:
    made = np.random.default_rng(seed)
    return [AskedRow(token_ids=tuple(made.integers(3, 64, n).tolist())) for n in lengths]


def reference(target: Path, row: AskedRow) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(target).eval()
    with torch.inference_mode():
        found = model.model(torch.tensor([row.token_ids]), output_hidden_states=True).hidden_states
    return torch.cat([found[b][0] for b in BOUNDARIES] + [found[-1][0]], dim=1).numpy()


def test_rows_are_those_of_transformers_whatever_the_chunks_and_batches(server: Server, target: Path):
    source = ServerSource.open(server.url, wanted(target))
    asked = rows(1, 5, 16, 17, 40, 64, 3, 33)

    found = {row.number: row.states for row in source.states(asked)}

    assert source.probe()[0].startswith("1 x sglang==0.5.15.post1")
    assert (source.name, source.last, source.dtype) == ("sglang==0.5.15.post1", "post-norm", "float32")
    assert sorted(found) == list(range(len(asked)))
    for number, row in enumerate(asked):
        np.testing.assert_allclose(found[number], reference(target, row), atol=2e-5)
    assert sorted(p.name for p in server.spool.iterdir()) == ["ready.json"]


def test_the_greedy_token_is_the_argmax_of_head_and_last_state(server: Server, target: Path):
    source = ServerSource.open(server.url, wanted(target))
    asked = rows(4, 21)
    head = AutoModelForCausalLM.from_pretrained(target).lm_head.weight.detach().numpy()

    tokens = source.greedy(asked)

    for row in source.states(asked):
        assert int((head @ row.states[-1, -32:]).argmax()) == tokens[row.number]


def test_positions_before_the_first_wanted_are_left_out(server: Server, target: Path):
    (whole,) = rows(12)
    (found,) = ServerSource.open(server.url, wanted(target)).states([AskedRow(token_ids=whole.token_ids, first=5)])

    assert found.first == 5
    np.testing.assert_allclose(found.states, reference(target, whole)[5:], atol=2e-5)


def test_other_boundaries_are_refused_with_the_server_s_own(server: Server, target: Path):
    with pytest.raises(SourceUnsupported, match=r"captures at \[1, 2, 3\], wanted are \[1, 2\]"):
        ServerSource.open(server.url, wanted(target, (1, 2))).probe()


def test_a_server_without_capture_is_refused_by_name(tmp_path: Path, target: Path):
    with pytest.raises(SourceUnsupported, match="no server hands over states"):
        ServerSource.open(f"sglang://127.0.0.1:1?spool={tmp_path}", wanted(target))


def test_a_row_longer_than_what_fits_is_refused_before_it_is_asked(server: Server, target: Path):
    with pytest.raises(SourceUnsupported, match="at most 256 tokens"):
        list(ServerSource.open(server.url, wanted(target)).states(rows(300)))


def test_extract_from_a_server_fills_a_proven_store(tmp_path: Path, server: Server, target: Path):
    data = write_rows(tmp_path / "rows", token_rows_of(*range(8, 30)))
    request = ExtractRequest(
        target=target, rows=data, out=tmp_path / "store", source=server.url, device="cpu", dtype="float32"
    )
    talk = Silent()

    done = extract(request, ExtractConfig(boundaries=BOUNDARIES, recheck=0.2), talk)

    assert done.num_rows == 22
    assert done.proof is not None
    assert not done.proof.faults
    assert "the head over the last state gives the source's own token" in " ".join(talk.lines)
    reader = StoreReader.open(tmp_path / "store")
    assert (reader.about.source, reader.about.last) == ("sglang==0.5.15.post1", "post-norm")
    for number in range(len(reader)):
        stored = reader.row(number)
        asked = AskedRow(token_ids=tuple(stored.token_ids.tolist()))
        np.testing.assert_allclose(stored.states, reference(target, asked), atol=2e-5)


def test_a_slow_reader_bounds_what_waits_and_loses_no_row(server: Server, target: Path):
    source, most, found = ServerSource.open(server.url, wanted(target)), 0, []

    for row in source.states(rows(*[64] * 60)):
        time.sleep(0.005)
        most = max(most, sum(path.stat().st_size for path in server.spool.glob("*.row")))
        found.append(row.number)

    assert sorted(found) == list(range(60))
    assert 0 < most <= server.limit


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_server_killed_twenty_times_gives_every_row_once(tmp_path: Path, target: Path):
    server, draw = Server(tmp_path, target, chunk=8).wait(), random.Random(0)
    said: list[str] = []
    asked = rows(*[48] * 600)
    found: dict[int, np.ndarray] = {}
    kills, due = 0, 10
    try:
        for row in ServerSource.open(server.url, wanted(target), say=said.append).states(asked):
            assert row.number not in found
            found[row.number] = np.array(row.states)
            if len(found) >= due and kills < 20:
                server.kill()
                server.start()
                kills, due = kills + 1, len(found) + draw.randrange(1, 50)
    finally:
        server.kill()
    assert kills == 20
    assert sorted(found) == list(range(600))
    for number in (0, 299, 599):
        np.testing.assert_allclose(found[number], reference(target, asked[number]), atol=2e-5)
    assert "does not answer" in said[0]
    assert "answers again" in said[-1]


@pytest.mark.soak
def test_a_server_that_stays_away_ends_the_run_with_its_name(tmp_path: Path, target: Path):
    server = Server(tmp_path, target).wait()
    source = ServerSource.open(server.url, wanted(target))
    source.patience_s = 1.0
    with pytest.raises(SourceFailed, match=r"sglang==0\.5\.15\.post1 gives no more states"):
        for row in source.states(rows(*[32] * 50)):
            if row.number >= 0 and server.process.poll() is None:
                server.kill()
