"""States from an unmodified SGLang server, by a module of ours that Python imports at start (`site/`).

Source: 0.5.9 ... 0.5.23; ForwardBatch has the request ids since 0.5.10. Ran on an H200 with 0.5.15.post1.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from eyas.contract.engines.capturing import CaptureWish, Capturing, RowRequest, odd_options, refused
from eyas.contract.engines.launching.recipe import EngineCommand, Recipe, trust_words, url_of
from eyas.contract.engines.loading.target_hooks import load_hooks, target_hook
from eyas.contract.engines.sglang.launching import SGLangLaunching, sizes
from eyas.contract.engines.version import at_least
from eyas.contract.spec.layer_ids import LayerIds, LayerIdsUnwritable
from eyas.contract.spec.target_spec import target_spec
from eyas.diagnostic import Diagnostic

_HERE = Path(__file__).parent
# the first that this version knows; before 0.5.12 prefill graphs are off by default
_NO_PREFILL_GRAPHS = ("--disable-prefill-cuda-graph", "--disable-piecewise-cuda-graph")
_SCALED_LAST = "logits_mup_width_multiplier"  # of muP targets
_UNWANTED = {
    "--speculative-algorithm": "a draft sets the target's capture hook to its own layers",
    "--pp-size": "the aux states of the earlier stages do not reach the last one",
    "--pipeline-parallel-size": "the aux states of the earlier stages do not reach the last one",
    "--enable-dp-attention": "tokens of several ranks are padded together",
    "--attn-dp-size": "tokens of several ranks are padded together",
    "--enable-piecewise-cuda-graph": "inside a captured graph no row can be handed over",
    "--enable-two-batch-overlap": "a pass is computed in halves",
    "--enable-return-hidden-states": "the replies would hold the states as text too",
}


class SGLangCapturing:
    """`Capturing` of SGLang."""

    first = "0.5.10"
    last: Literal["post-norm"] = "post-norm"

    def command(self, recipe: Recipe, wish: CaptureWish) -> EngineCommand:
        """The server with its prefix cache and its prefill graphs off."""
        options = recipe.options
        port = options.port or SGLangLaunching.default_port
        argv = [recipe.python, "-m", "sglang.launch_server", "--model-path", recipe.target]
        argv += ["--host", options.host, "--port", str(port), *sizes(recipe), "--disable-radix-cache"]
        argv += [flag for flag in _NO_PREFILL_GRAPHS if flag in recipe.known.names][:1]
        trust, trusted = trust_words(recipe)
        argv += [*trust, *(("--served-model-name", options.served_name) if options.served_name else ())]
        if "--enable-metrics" not in recipe.extra:
            argv.append("--enable-metrics")
        ids, findings = _layer_ids(recipe, wish)
        wanted = {"layer_ids": ids, "boundaries": wish.boundaries, "spool": wish.spool, "limit": wish.limit_bytes}
        return EngineCommand(
            argv=(*argv, *recipe.extra),
            environment={"EYAS_CAPTURE": json.dumps(wanted)},
            url=url_of(options, port),
            counting=recipe.draft.counting,
            key_flag="--config" if recipe.key_variable else None,
            notes=("the prefix cache and prefill graphs are off: every row is computed whole", *trusted),
            findings=(
                *findings,
                *odd_options(recipe, _UNWANTED),
                *recipe.known.findings(argv, recipe.extra),
            ),
        )

    def row_request(self, row_id: str, token_ids: Sequence[int], model: str) -> RowRequest:
        """`/generate` with a request id of ours."""
        sampling = {"temperature": 0.0, "max_new_tokens": 1, "ignore_eos": True}
        body = {"rid": row_id, "input_ids": list(token_ids), "sampling_params": sampling}
        return RowRequest(route="/generate", body=body)

    def greedy_token(self, answer: Mapping[str, Any]) -> int:
        """The one token of `output_ids`."""
        return int(answer["output_ids"][0])


def _layer_ids(recipe: Recipe, wish: CaptureWish) -> tuple[list[int], list[Diagnostic]]:
    """The ids that this version's class reads as the boundaries wanted, or why there are none."""
    engine = recipe.draft.engine
    if not at_least(engine.version, SGLangCapturing.first):
        why = "its ForwardBatch has no request ids, so rows cannot be told apart"
        return [], [refused("capture-version", recipe, why=why, first=SGLangCapturing.first)]
    if recipe.target_headers is None:
        return [], [
            refused("capture-target", recipe, name="unknown", why="eyas has not seen its config", do="give its folder")
        ]
    target = target_spec(recipe.target_headers)
    architectures = target.architectures
    hook = target_hook(load_hooks(_HERE), engine, architectures)
    name = next(iter(architectures), "unnamed")
    if target.text_config.get(_SCALED_LAST):
        why, do = f"its last state arrives scaled ({_SCALED_LAST})", "use `eyas extract --from transformers`"
        return [], [refused("capture-target", recipe, name=name, why=why, do=do)]
    if hook.status in ("absent", "unregistered"):
        do = f"use SGLang {hook.first} or newer" if hook.first else "use `eyas extract --from transformers`"
        return [], [refused("capture-target", recipe, name=name, why="this version's class has no capture hook", do=do)]
    end = wish.num_layers + hook.taps_end
    out = [boundary for boundary in wish.boundaries if not 0 < boundary < end]
    if out:
        why, do = f"boundary {out[0]} is not in 1 .. {end - 1}, where this class can be tapped", "choose others"
        return [], [refused("capture-target", recipe, name=name, why=why, do=do)]
    convention = hook.convention if hook.status != "unknown" else "after-layer"
    try:
        return list(LayerIds.of_boundaries(wish.boundaries, convention, wish.num_layers).ids), []
    except LayerIdsUnwritable as error:
        return [], [refused("capture-target", recipe, name=name, why=f"{error.what}: {error.why}", do="choose others")]


CAPTURING: Capturing = SGLangCapturing()
