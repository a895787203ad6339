"""The KV connector that hands over states of a vLLM server started by `eyas serve --capture`. Imports nothing of eyas.

`extract_hidden_states` makes vLLM keep the states of a request in a KV cache of their own. When the request has ended,
vLLM's own `ExampleHiddenStatesConnector` gathers and saves them; this subclass gathers them the same way and hands them
to the spool instead: it works on a CPU too (the stock one pins memory), waits where the reader is slow, and names the
row as the client did (`kv_transfer_params: {"eyas_row": ...}`). Requests without a name are left alone.

Source: distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py of 0.25.1, 0.32.0 and 0.33.0.
"""

import json
from typing import Any

import torch
import vllm
from eyas_spool import Piece, Spool, row_of
from vllm.distributed.kv_transfer.kv_connector.v1 import example_hidden_states_connector as stock


class EyasCaptureConnector(stock.ExampleHiddenStatesConnector):  # type: ignore[misc]
    """See the module."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._wanted = json.loads(self._kv_transfer_config.get_from_extra_config("eyas_capture", "{}"))
        self._spool: Spool | None = None
        self._gathered: set[str] = set()

    def get_finished_count(self) -> int:
        """Only rank 0 reports a row; without this, 0.25.1 waits for all ranks under tensor parallelism."""
        return 1

    def register_kv_caches(self, kv_caches: Any) -> None:
        """Open the spool: the sizes are known now."""
        super().register_kv_caches(kv_caches)
        if not self._is_tp_rank_zero:
            return
        config = self._vllm_config.model_config
        about = {"boundaries": json.dumps(self._wanted["boundaries"]), "last": "pre-norm"}
        about["source"] = f"vllm=={vllm.__version__}"
        self._spool = Spool(self._wanted["spool"], self._wanted["limit"], about)
        sizes = {"hidden_size": config.get_hidden_size(), "context_length": config.max_model_len}
        dtype = str(self._kv_cache.dtype).removeprefix("torch.")
        facts = {"boundaries": self._wanted["boundaries"], "dtype": dtype, "limit": self._wanted["limit"]}
        self._spool.announce({**about, **facts, **sizes})

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Keep a row's blocks until they are gathered; let go of every other request's."""
        name = (request.kv_transfer_params or {}).get("eyas_row")
        is_known = request.request_id in self._request_filenames  # not so if it was never scheduled
        if row_of(name) is None or not is_known:
            self._request_filenames.pop(request.request_id, None)
            return False, None
        kept, answer = super().request_finished(request, block_ids)
        if kept:
            self._pending_saves[request.request_id].filename = name
        return kept, answer and {"eyas_row": name}

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Gather what has ended, and report exactly that. The stock one of 0.25.1 reports every request that ended,
        and every rank does: the scheduler has freed those whose blocks nothing held."""
        if self.has_connector_metadata():
            for pending in getattr(self._get_connector_metadata(), "pending_saves", ()):
                self._hand_over(pending)
        done, self._gathered = self._gathered, set()
        return done or None, None

    def _hand_over(self, pending: Any) -> None:
        if self._spool is None:
            return
        row = row_of(pending.filename)
        num_tokens = len(pending.token_ids)
        assert row is not None, "`request_finished` keeps no others"
        if row[1] != num_tokens:
            self._spool.fail(row[0], f"{num_tokens} tokens were computed, {row[1]} were announced")
        else:
            slots = torch.tensor(pending.block_ids, dtype=torch.long)[:, None] * self._block_size
            slots = (slots + torch.arange(self._block_size)).flatten().to(self._kv_cache.device)
            states = stock.extract_from_kv_cache(self._kv_cache, slots, num_tokens)
            piece = Piece(row[0], row[1], 0, 0, num_tokens)
            self._spool.put([piece], [states.reshape(num_tokens, -1)], pending.token_ids)
        # later passes run on the same stream, after the copy: the blocks can be given back now
        self._gathered.add(pending.req_id)
