"""Training under SIGKILL with states from elsewhere, whose servers are killed too; `training_soak.py` says how."""

import json
import threading
from argparse import Namespace
from pathlib import Path

import pytest

from capturing_server import BOUNDARIES, Server
from eyas.data.rows.row_store import Rows
from eyas.data.text.tokenise import TokenRow
from eyas.records.eval_rows import EvalRow, read_eval_rows
from state_store import write_store
from training_soak import soak

AUX = ["--aux-boundaries", *map(str, BOUNDARIES)]


def options(kills: int) -> Namespace:
    return Namespace(kills=kills, seed=kills, device="cpu", target=None, rows=None, batch_tokens=150)


def held_out_of(rows: Path) -> list[TokenRow]:
    read = read_eval_rows([rows / "held_out.jsonl"], 64)
    return [TokenRow((*r.prompt_ids, *r.response_ids), ()) for r in read if isinstance(r, EvalRow)]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_training_from_a_store_that_is_killed_ends_with_the_same_weights(tmp_path: Path):
    def given(target: Path, rows: Path) -> list[str]:
        store = write_store(tmp_path / "store", target, [*Rows(rows), *held_out_of(rows)], BOUNDARIES)
        return [*AUX, "--hidden-states", str(store)]

    found = soak(options(10), tmp_path, given)

    assert found["is_curve_identical"]
    assert found["are_weights_identical"]
    assert found["leavings"] == []


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_training_from_servers_that_are_killed_beside_it_learns_from_each_row_once(tmp_path: Path):
    servers = list[Server]()

    def given(target: Path, rows: Path) -> list[str]:
        config = json.loads((target / "config.json").read_text())
        (target / "config.json").write_text(json.dumps(config | {"dtype": "float32"}))
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            servers.append(Server(tmp_path / name, target, limit=1 << 22))
        return [*AUX, *(word for server in servers for word in ("--stream", server.wait().url))]

    def kill_one() -> None:
        if b"fired up" not in servers[1].log.read_bytes():
            return  # it was killed before: a run that finds no server at all does not start
        servers[0].kill()
        servers[0].start()
        servers.reverse()
        threading.Event().wait(0.2)

    try:
        found = soak(options(20), tmp_path, given, kill_one)
    finally:
        for server in servers:
            server.kill()

    # A server's batches are not those of the undisturbed run: sums in another order.
    assert float(str(found["largest_relative_difference"])) < 0.02
    assert found["leavings"] == []
