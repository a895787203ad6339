"""The EAGLE repository: `pytorch_model.bin`, `midlayer.*`, no embedding, one Llama layer, three aux states, no ids.

Source: SafeAILab/EAGLE cb7e0841 `eagle/model/cnets.py` (`_init_rope`: linear and dynamic scaling only), `ea_model.py`.
"""

from functools import partial

from eyas.contract.dialects.dialect import Dialect
from eyas.contract.dialects.evidence import architecture, has_tensor, is_bin, is_eagle3
from eyas.contract.dialects.flat_config import FlatStyle, write_flat
from eyas.contract.dialects.limits import FormatLimits
from eyas.contract.files.checkpoint import Checkpoint
from eyas.contract.spec.tensor_names import SINGLE_MIDLAYER_NAMES

_STYLE = FlatStyle(
    limits=FormatLimits(
        format="the EAGLE repository",
        residual_post=False,
        feedback_post=False,
        qk_norm=False,
        attention_bias=False,
        mlp_bias=False,
        sliding_window=False,
        mla=False,
        max_layers=1,
        aux_norms=frozenset({"none"}),
        rope_types=frozenset({"default", "linear", "dynamic"}),
        quantization=False,
        fixed_aux=True,
    ),
    names=SINGLE_MIDLAYER_NAMES,
    gqa_architecture="LlamaForCausalLM",
    nested_ids=None,
    top_ids=False,
    container="bin",
)


def _detect(checkpoint: Checkpoint) -> tuple[str, ...]:
    if not is_eagle3(checkpoint) or not has_tensor(checkpoint, "midlayer."):
        return ()
    found = []
    if is_bin(checkpoint):
        found.append("weights in a .bin")
    if architecture(checkpoint) == "LlamaForCausalLM":
        found.append("architectures LlamaForCausalLM with midlayer.* tensors (the training config's)")
    return tuple(found)


_write = partial(write_flat, style=_STYLE)
EAGLE = Dialect(
    name="eagle", title="EAGLE repository (pytorch_model.bin)", detect=_detect, write=_write, activations=None
)
