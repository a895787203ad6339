"""The config of the text model inside a target, as transformers' config classes read it."""

from typing import Any

from eyas.contract.spec.target_spec import TargetSpec

# Text models under another name than the class that computes them.
_SAME_AS = {"kimi_k2": "deepseek_v3"}


def text_model_options(spec: TargetSpec) -> tuple[str, dict[str, Any]]:
    """Of the text model in a target: transformers' name for its class, and its config with what the wrapper says."""
    options = {key: value for key, value in spec.text_config.items() if key not in ("model_type", "auto_map")}
    options["tie_word_embeddings"] = spec.tie_word_embeddings
    if "quantization_config" in spec.config:
        options.setdefault("quantization_config", spec.config["quantization_config"])
    return _SAME_AS.get(spec.text_model_type, spec.text_model_type), options
