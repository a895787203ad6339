"""TorchSpec: `midlayer.*` (or `layers.0.*` with its --vllm), embedding included, GQA or MLA, one layer.

Source: lightseekorg/TorchSpec 6f21829 `tools/convert_to_hf.py`.
"""

from functools import partial

from eyas.contract.dialects.dialect import Dialect
from eyas.contract.dialects.evidence import is_eagle3
from eyas.contract.dialects.flat_config import FlatStyle, write_flat
from eyas.contract.dialects.limits import FormatLimits
from eyas.contract.files.checkpoint import Checkpoint
from eyas.contract.spec.tensor_names import SINGLE_MIDLAYER_NAMES

_STYLE = FlatStyle(
    limits=FormatLimits(
        format="TorchSpec",
        residual_post=False,
        qk_norm=False,
        attention_bias=False,
        mlp_bias=False,
        fc_bias=False,
        sliding_window=False,
        max_layers=1,
        aux_norms=frozenset({"none", "per-state"}),
        mla_aux_norms=frozenset({"none", "per-state"}),
        quantization=False,
    ),
    names=SINGLE_MIDLAYER_NAMES,
    gqa_architecture="LlamaForCausalLMEagle3",
    embedding="want",
)


def _detect(checkpoint: Checkpoint) -> tuple[str, ...]:
    if not is_eagle3(checkpoint):
        return ()
    return tuple(
        f"{key} in config.json" for key in ("_torchspec_version", "torchspec_version") if key in checkpoint.config
    )


_write = partial(write_flat, style=_STYLE, extra={"_torchspec_version": "eyas"})
TORCHSPEC = Dialect(name="torchspec", title="TorchSpec (midlayer.*, with embedding)", detect=_detect, write=_write)
