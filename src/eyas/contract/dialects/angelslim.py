"""AngelSlim: `midlayer.*`, class `Eagle3LlamaForCausalLM` (SGLang does not know that name; vLLM does).

Source: Tencent/AngelSlim 67394ce5 `train/models/draft/llama_eagle3.py`.
"""

from eyas.contract.dialects.dialect import Dialect, Written
from eyas.contract.dialects.evidence import architecture, has_tensor
from eyas.contract.dialects.flat_config import FlatStyle, write_flat
from eyas.contract.dialects.limits import FormatLimits
from eyas.contract.files.checkpoint import Checkpoint
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.target_spec import TargetSpec
from eyas.contract.spec.tensor_names import SINGLE_MIDLAYER_NAMES

_STYLE = FlatStyle(
    limits=FormatLimits(
        format="AngelSlim",
        residual_post=False,
        feedback_post=False,
        qk_norm=False,
        attention_bias=False,
        mlp_bias=False,
        sliding_window=False,
        mla=False,
        max_layers=1,
        aux_norms=frozenset({"none"}),
        quantization=False,
        fixed_aux=True,
    ),
    names=SINGLE_MIDLAYER_NAMES,
    gqa_architecture="Eagle3LlamaForCausalLM",
    nested_ids=None,
    top_ids=False,
)


def _detect(checkpoint: Checkpoint) -> tuple[str, ...]:
    # SpecForge writes target_model_type too: the class name decides
    if not has_tensor(checkpoint, "midlayer.") or architecture(checkpoint) != "Eagle3LlamaForCausalLM":
        return ()
    more = ("target_model_type in config.json",) if "target_model_type" in checkpoint.config else ()
    return ("architectures Eagle3LlamaForCausalLM with midlayer.* tensors", *more)


def _write(spec: DraftSpec, target: TargetSpec | None) -> Written:
    return write_flat(spec, target, _STYLE, {"target_model_type": target.text_model_type if target else None})


ANGELSLIM = Dialect(name="angelslim", title="AngelSlim (Eagle3LlamaForCausalLM)", detect=_detect, write=_write)
