"""TensorRT-LLM: what its loader expects. Written only: it has no format of its own and reads `layers.N.*`.

Source: NVIDIA/TensorRT-LLM 00679c66 `tensorrt_llm/_torch/models/modeling_speculative.py`.
"""

from collections.abc import Mapping
from dataclasses import replace

from eyas.contract.dialects.dialect import Dialect, Written
from eyas.contract.dialects.flat_config import FlatStyle, write_flat
from eyas.contract.dialects.limits import FormatLimits
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.target_spec import TargetSpec
from eyas.contract.spec.tensor_names import LAYERS_NAMES

_STYLE = FlatStyle(
    limits=FormatLimits(
        format="TensorRT-LLM",
        residual_post=False,
        qk_norm=False,
        sliding_window=False,
        mla_layers=None,
    ),
    names=LAYERS_NAMES,
    gqa_architecture="LlamaForCausalLMEagle3",
    identity_map=False,
    nested_ids="after-layer",
    top_ids=False,
)


def _write(spec: DraftSpec, target: TargetSpec | None) -> Written:
    written = write_flat(spec, target, _STYLE)
    below = written.config.get("eagle_config")
    more = {
        **(below if isinstance(below, Mapping) else {}),
        "next_layer_regular": True,
        "eh_proj_before_attn": False,
        "eh_proj_bias": False,
        "return_hidden_post_norm": written.config["norm_output"],
    }
    # a null is a missing key to it, and a missing key is the whole vocabulary
    head = {"draft_vocab_size": spec.draft_vocab_size}
    return replace(written, config={**written.config, **head, "eagle_config": more})


TRTLLM = Dialect(name="trtllm", title="TensorRT-LLM (written only)", detect=None, write=_write, activations=None)
