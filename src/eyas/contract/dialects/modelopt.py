"""ModelOpt (Hugging Face export): `layers.N.*`, never an embedding, never a t2d, ids nested after layers.

Source: NVIDIA/Model-Optimizer a2fbac7b `modelopt/torch/export/plugins/hf_spec_export.py` (its sets of allowed keys).
"""

from collections.abc import Mapping
from dataclasses import replace

from eyas.contract.dialects.dialect import Dialect, Written
from eyas.contract.dialects.evidence import eagle_config, has_tensor, is_eagle3
from eyas.contract.dialects.flat_config import FlatStyle, write_flat
from eyas.contract.dialects.limits import FormatLimits
from eyas.contract.files.checkpoint import Checkpoint
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.target_spec import TargetSpec
from eyas.contract.spec.tensor_names import LAYERS_NAMES

_KEYS = ("use_input_layernorm_in_first_layer", "use_last_layernorm", "next_layer_regular", "parallel_draft_step")
_STYLE = FlatStyle(
    limits=FormatLimits(
        format="ModelOpt",
        residual_post=False,
        feedback_post=False,
        qk_norm=False,
        attention_bias=False,
        mlp_bias=False,
        fc_bias=False,
        sliding_window=False,
        aux_norms=frozenset({"none"}),
        mla_aux_norms=frozenset({"none"}),
        own_embedding=False,
        target_hidden_size=False,
    ),
    names=LAYERS_NAMES,
    gqa_architecture="LlamaForCausalLMEagle3",
    t2d="never",
    identity_map=False,
    nested_ids="after-layer",
    top_ids=False,
)


def _detect(checkpoint: Checkpoint) -> tuple[str, ...]:
    if not is_eagle3(checkpoint) or has_tensor(checkpoint, "midlayer."):
        return ()
    found = [f"eagle_config.{key}" for key in _KEYS if key in eagle_config(checkpoint)]
    # TorchSpec copies the same eagle_config, but stores an embedding
    if not found or has_tensor(checkpoint, "embed_tokens.") or has_tensor(checkpoint, "t2d"):
        return ()
    return (*found, "no embed_tokens, no t2d")


def _write(spec: DraftSpec, target: TargetSpec | None) -> Written:
    written = write_flat(spec, target, _STYLE)
    below = written.config.get("eagle_config")
    more = {
        **(below if isinstance(below, Mapping) else {"use_aux_hidden_state": True}),
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
    }
    return replace(written, config={**written.config, "eagle_config": more})


MODELOPT = Dialect(name="modelopt", title="ModelOpt, Hugging Face export (layers.N.*)", detect=_detect, write=_write)
