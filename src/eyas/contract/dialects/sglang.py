"""SGLang / SpecForge: `midlayer.*` for layer 0, `layers.N.*` beyond it, one-level config, ids nested in eagle_config.

Source: SGLang 0.5.23 `llama_eagle3.py`, `kimi_k25_eagle3.py`; SpecForge `export --to sglang`.
"""

from dataclasses import replace

from eyas.contract.dialects.dialect import Dialect, Written, loss
from eyas.contract.dialects.evidence import architecture, has_tensor
from eyas.contract.dialects.flat_config import FlatStyle, write_flat
from eyas.contract.dialects.limits import FormatLimits
from eyas.contract.files.checkpoint import Checkpoint
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.target_spec import TargetSpec
from eyas.contract.spec.tensor_names import SGLANG_NAMES

_STYLE = FlatStyle(
    limits=FormatLimits(
        format="SGLang",
        residual_post=False,
        qk_norm=False,
        attention_bias=False,
        mlp_bias=False,
        sliding_window=False,
        mla_aux_norms=frozenset({"none", "per-state"}),
        interleaved_gqa=True,
    ),
    names=SGLANG_NAMES,
    gqa_architecture="LlamaForCausalLMEagle3",
)


def _detect(checkpoint: Checkpoint) -> tuple[str, ...]:
    if not has_tensor(checkpoint, "midlayer."):
        return ()
    found = ["tensors midlayer.*"]
    if architecture(checkpoint) in ("LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"):
        found.append(f"architectures {architecture(checkpoint)}")
    return tuple(found)


def _write(spec: DraftSpec, target: TargetSpec | None) -> Written:
    is_interleaved_gqa = spec.rope.interleaved and spec.draft_class == "gqa"
    written = write_flat(spec, target, _STYLE, {"rope_is_neox_style": False if is_interleaved_gqa else None})
    if spec.num_aux == 1 and spec.target_hidden_size == spec.hidden_size:
        skipped = loss(
            "loss-num-aux",
            "num_aux",
            "SGLang skips fc when one aux state is as wide as the draft (it compares widths)",
        )
        return replace(written, losses=(*written.losses, skipped))
    return written


SGLANG = Dialect(name="sglang", title="SGLang / SpecForge (midlayer.*)", detect=_detect, write=_write)
