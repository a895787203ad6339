"""speculators >= 0.5: `layers.N.*`, the decoder layer's config nested, the verifier named, embedding included.

Source: speculators 0.9.0 `config.py`, `models/eagle3/config.py`; vLLM 0.33.0 `configs/speculators/algos.py`.
"""

from collections.abc import Mapping
from typing import Any

from eyas.contract.dialects.dialect import Dialect, Written, loss
from eyas.contract.dialects.flat_config import (
    layer_config,
    stored_names,
    switch_config,
    torch_dtype,
    zero_output_biases,
)
from eyas.contract.dialects.limits import FormatLimits, dropped_by, losses
from eyas.contract.files.checkpoint import Checkpoint
from eyas.contract.spec.config_keys import SPECULATORS_KEYS
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.read_config import ConfigSource
from eyas.contract.spec.target_spec import TargetSpec
from eyas.contract.spec.tensor_names import LAYERS_NAMES
from eyas.diagnostic import Diagnostic, finding

VERSION = "0.9.0"  # the version whose format is written
_NO_IDS = "speculators writes aux layer ids; they are not known"
_LIMITS = FormatLimits(format="speculators", mla=False, fc_bias=False)


def _detect(checkpoint: Checkpoint) -> tuple[str, ...]:
    found = [
        f"{key} in config.json"
        for key in ("speculators_config", "speculators_model_type", "transformer_layer_config")
        if key in checkpoint.config
    ]
    return tuple(found)


def _source(checkpoint: Checkpoint) -> ConfigSource:
    layer = checkpoint.config.get("transformer_layer_config")
    return ConfigSource(
        sizes=layer if isinstance(layer, Mapping) else {},
        switches=checkpoint.config,
        # the config class says false; vLLM, finding no key, says true: see the finding
        residual_default=False,
        known=SPECULATORS_KEYS,
        size_level="config.json: transformer_layer_config",
    )


def _odd(checkpoint: Checkpoint) -> tuple[Diagnostic, ...]:
    findings, place = [], f"{checkpoint.where}: config.json"
    kind = checkpoint.config.get("speculators_model_type", "eagle3")
    if kind != "eagle3":
        what, why = f"speculators_model_type is {str(kind)[:40]}", "eyas knows the function of eagle3 only"
        do = "serve it with vLLM directly; eyas cannot check it"
        findings.append(finding("speculators-not-eagle3", "error", what, place, why, do))
    if "norm_before_residual" not in checkpoint.config:
        what = "norm_before_residual is not in config.json"
        why = "the config class takes false, vLLM takes true; the wrong one costs nearly all acceptance"
        do = "write norm_before_residual as the draft was trained (`eyas infer` finds out which)"
        findings.append(finding("residual-unstated", "error", what, place, why, do))
    return tuple(findings)


def _write(spec: DraftSpec, target: TargetSpec | None) -> Written:
    lost = list(losses(spec, _LIMITS))
    if spec.aux_boundaries is None:
        lost.append(
            loss("loss-aux-boundaries", "aux_boundaries", _NO_IDS, needs_target=target is None and spec.num_aux == 3)
        )
    dropped = dropped_by(spec, tuple(lost))
    names = stored_names(spec, LAYERS_NAMES, dropped, t2d="keep", identity_map=False)
    derived = {"t2d": "d2t"} if "t2d" in names and "t2d" not in spec.tensors else {}
    if spec.embedding == "target":
        derived["embed_tokens.weight"] = "target"
    if not spec.qk_norm:
        # vLLM builds a Llama layer, whose attention_bias includes o_proj
        zeros = zero_output_biases(spec, LAYERS_NAMES)
        names.update(zeros)
        derived.update(dict.fromkeys(zeros, "zeros"))
    switches = switch_config(spec)
    num_aux = switches.pop("num_aux_hidden_states")
    codes = {one.code for one in lost}
    layer = layer_config(spec, "qwen3" if spec.qk_norm else "llama")
    layer.update({"num_aux_hidden_states": num_aux, "tie_word_embeddings": False, **spec.token_ids})
    config: dict[str, Any] = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": VERSION,
        "speculators_config": _speculators_config(spec, target),
        "transformer_layer_config": layer,
        **switches,
        "draft_vocab_size": spec.draft_vocab_size,
        "target_hidden_size": switches.get("target_hidden_size"),
        "eagle_aux_hidden_state_layer_ids": list(spec.aux_boundaries) if spec.aux_boundaries else None,
        "embed_requires_grad": False,
        "dtype": torch_dtype(spec),
    }
    return Written(
        config=config,
        names=names,
        derived=derived,
        dropped={
            name: dropped.get(name, "the identity map: draft and target vocabulary are the same")
            for name in spec.tensors
            if name not in names
        },
        losses=tuple(lost),
        notes=_notes(config, codes),
    )


def _notes(config: Mapping[str, Any], codes: set[str]) -> tuple[str, ...]:
    notes = ["eagle_aux_hidden_state_layer_ids is null"] if "loss-aux-boundaries" in codes else []
    if config["speculators_config"]["verifier"]["name_or_path"] is None:
        notes.append("the verifier has no public name: launch vLLM with the target and --speculative-config")
    return tuple(notes)


def _speculators_config(spec: DraftSpec, target: TargetSpec | None) -> dict[str, Any]:
    known = spec.target or {}
    name = (target.name if target else None) or known.get("name_or_path")
    architectures = list(target.architectures) if target else known.get("architectures")
    return {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [
            {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
        ],
        "verifier": {"name_or_path": name, "architectures": architectures or []},
    }


SPECULATORS = Dialect(
    name="speculators",
    title="speculators >= 0.5 (vLLM's own format)",
    detect=_detect,
    write=_write,
    source=_source,
    odd=_odd,
)
