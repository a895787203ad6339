"""Raw vLLM: `layers.N.*`, one-level config, aux ids at the top level (both runners read them there, as boundaries).

Source: vLLM 0.33.0 `llama_eagle3.py`, `qwen3_eagle3.py`, `deepseek_eagle3.py`, `eagle3_utils.py`.
"""

from eyas.contract.dialects.dialect import Dialect, Written
from eyas.contract.dialects.evidence import architecture, has_fc, has_tensor, is_eagle3
from eyas.contract.dialects.flat_config import FlatStyle, write_flat
from eyas.contract.dialects.limits import FormatLimits
from eyas.contract.files.checkpoint import Checkpoint
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.target_spec import TargetSpec
from eyas.contract.spec.tensor_names import LAYERS_NAMES

_LIMITS = FormatLimits(format="vLLM", fc_bias=False, mla_layers=None, mla_aux_norms=frozenset({"none", "per-state"}))


def _detect(checkpoint: Checkpoint) -> tuple[str, ...]:
    if not is_eagle3(checkpoint) or has_tensor(checkpoint, "midlayer."):
        return ()
    found = []
    if has_tensor(checkpoint, "layers.0."):
        found.append("tensors layers.0.*")
    if "eagle_aux_hidden_state_layer_ids" in checkpoint.config:
        found.append("eagle_aux_hidden_state_layer_ids at the top level")
    if not found and (has_fc(checkpoint) or "Eagle3" in architecture(checkpoint)):
        found.append("an EAGLE-3 draft of no other format")
    return tuple(found)


def _write(spec: DraftSpec, target: TargetSpec | None) -> Written:
    style = FlatStyle(
        limits=_LIMITS,
        names=LAYERS_NAMES,
        gqa_architecture="Eagle3Qwen3ForCausalLM" if spec.qk_norm else "LlamaForCausalLMEagle3",
        # a d2t with equal vocabularies has no parameter: vLLM crashes on it
        identity_map=False,
        # Llama's attention_bias includes o_proj, Qwen3's does not
        output_bias=not spec.qk_norm and spec.draft_class == "gqa",
    )
    return write_flat(spec, target, style)


VLLM = Dialect(name="vllm", title="raw vLLM (layers.N.*)", detect=_detect, write=_write)
