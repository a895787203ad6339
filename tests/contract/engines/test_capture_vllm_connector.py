"""The vLLM connector against a stand-in for the stock one: what it keeps, hands over and reports.

The real stock connector: `tests/real_engines/test_vllm_cpu_capture.py`.
"""

import json
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine_site import load
from eyas.contract.engines.capturing import SHARED_SITE
from eyas.contract.engines.registry import engine_named

BLOCK, STATES, HIDDEN = 4, 3, 8


class Stock:
    """As much of `ExampleHiddenStatesConnector` as a subclass meets."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self._vllm_config = vllm_config
        self._kv_transfer_config = vllm_config.kv_transfer_config
        self._request_filenames: dict[str, str] = {}
        self._pending_saves: dict[str, Any] = {}
        self._is_tp_rank_zero, self._block_size = vllm_config.rank == 0, BLOCK
        self.sent: Any = None

    def register_kv_caches(self, kv_caches: Any) -> None:
        self._kv_cache = kv_caches["states"]

    def has_connector_metadata(self) -> bool:
        return self.sent is not None

    def _get_connector_metadata(self) -> Any:
        return self.sent

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any]]:
        self._request_filenames.pop(request.request_id)
        ids = torch.tensor(request.prompt_token_ids)
        pending = SimpleNamespace(req_id=request.request_id, filename="f", token_ids=ids, block_ids=block_ids)
        self._pending_saves[request.request_id] = pending
        return True, {"hidden_states_path": "f"}


@pytest.fixture
def connector_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    stock = ModuleType("vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector")
    stock.ExampleHiddenStatesConnector = Stock  # type: ignore[attr-defined]
    stock.extract_from_kv_cache = lambda cache, slots, num: cache[slots // BLOCK, slots % BLOCK][:num]  # type: ignore[attr-defined]
    names = stock.__name__.split(".")
    for end in range(1, len(names)):
        monkeypatch.setitem(sys.modules, ".".join(names[:end]), ModuleType(".".join(names[:end])))
    sys.modules["vllm"].__version__ = "0.25.1"  # type: ignore[attr-defined]
    sys.modules[stock.__name__.rpartition(".")[0]].example_hidden_states_connector = stock  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "eyas_spool", load(SHARED_SITE, "eyas_spool"))
    return load(engine_named("vllm").folder / "site", "eyas_vllm_capture").EyasCaptureConnector


def made(connector_class: Any, folder: Path, rank: int = 0) -> Any:
    wanted = json.dumps({"spool": str(folder), "limit": 1 << 20, "boundaries": [1, 2]})
    transfer = SimpleNamespace(get_from_extra_config=lambda name, default: wanted)
    model = SimpleNamespace(get_hidden_size=lambda: HIDDEN, max_model_len=64)
    config = SimpleNamespace(kv_transfer_config=transfer, model_config=model, rank=rank)
    connector = connector_class(config, None, None)
    cache = torch.arange(6 * BLOCK * STATES * HIDDEN).reshape(6, BLOCK, STATES, HIDDEN).float()
    connector.register_kv_caches({"states": cache})
    return connector


def finish(connector: Any, request_id: str, row: str | None, ids: list[int], blocks: list[int]) -> Any:
    """What the scheduler does when a request ends; True where its blocks are kept."""
    connector._request_filenames[request_id] = "f"
    parameters = {"eyas_row": row} if row else None
    request = SimpleNamespace(request_id=request_id, prompt_token_ids=ids, kv_transfer_params=parameters)
    kept = connector.request_finished(request, blocks)
    connector.sent = SimpleNamespace(pending_saves=list(connector._pending_saves.values()))
    connector._pending_saves.clear()
    return kept


def test_a_row_is_gathered_from_its_blocks_and_reported_once(connector_class: Any, tmp_path: Path):
    connector = made(connector_class, tmp_path)

    assert finish(connector, "q1", "eyas.h-a.6", [5, 6, 7, 8, 9, 10], [4, 1]) == (True, {"eyas_row": "eyas.h-a.6"})
    assert connector.get_finished({"q1"}) == ({"q1"}, None)
    connector.sent = None
    assert connector.get_finished(set()) == (None, None)

    end = time.monotonic() + 5
    while not (tmp_path / "h-a.row").exists():
        assert time.monotonic() < end
        time.sleep(0.005)
    found = load_file(tmp_path / "h-a.row")
    slots = [*range(4 * BLOCK, 5 * BLOCK), BLOCK, BLOCK + 1]
    assert torch.equal(found["states"], connector._kv_cache.flatten(0, 1)[slots].flatten(1))
    assert found["token_ids"].tolist() == [5, 6, 7, 8, 9, 10]


def test_a_request_that_is_not_a_row_keeps_nothing_and_is_not_reported(connector_class: Any, tmp_path: Path):
    connector = made(connector_class, tmp_path)

    assert finish(connector, "q1", None, [5, 6], [0]) == (False, None)
    assert finish(connector, "q2", "../evil", [5, 6], [0]) == (False, None)
    assert connector.get_finished({"q1", "q2"}) == (None, None)  # 0.25.1 asserts that it still knows what is reported
    assert connector.request_finished(SimpleNamespace(request_id="q3", kv_transfer_params=None), []) == (False, None)


def test_other_ranks_hand_over_and_report_nothing(connector_class: Any, tmp_path: Path):
    connector = made(connector_class, tmp_path, rank=1)
    finish(connector, "q1", "eyas.h-a.2", [5, 6], [0])

    assert connector.get_finished({"q1"}) == (None, None)
    assert connector.get_finished_count() == 1
    assert list(tmp_path.iterdir()) == []


def test_a_row_of_another_length_is_said_and_its_blocks_are_given_back(connector_class: Any, tmp_path: Path):
    connector = made(connector_class, tmp_path)
    finish(connector, "q1", "eyas.h-a.3", [5, 6], [0])

    assert connector.get_finished({"q1"}) == ({"q1"}, None)
    assert "2 tokens were computed, 3 were announced" in (tmp_path / "h-a.failed").read_text()
