"""vLLM's draft loaders by version. Source: model_executor/models/{llama,qwen3,deepseek}_eagle3.py and registry.py."""

from dataclasses import replace

from eyas.contract.engines.loading.load_rules import LoadRules

# Architecture name (after the "Eagle3" prefix was put on) -> runtime class. Source: registry.py, same in all three.
REGISTRY = {
    "PEagleDraftModel": "Eagle3LlamaForCausalLM",
    "PeagleLlamaForCausalLM": "Eagle3LlamaForCausalLM",
    "Eagle3LlamaForCausalLM": "Eagle3LlamaForCausalLM",
    "Eagle3MiniMaxM2ForCausalLM": "Eagle3LlamaForCausalLM",
    "LlamaForCausalLMEagle3": "Eagle3LlamaForCausalLM",
    "Eagle3Qwen2_5vlForCausalLM": "Eagle3LlamaForCausalLM",
    "Eagle3Qwen3vlForCausalLM": "Eagle3LlamaForCausalLM",
    "Eagle3Qwen3ForCausalLM": "Eagle3Qwen3ForCausalLM",
    "PeagleQwen3ForCausalLM": "Eagle3Qwen3ForCausalLM",
    "Eagle3DeepseekV2ForCausalLM": "Eagle3DeepseekV2ForCausalLM",
    "Eagle3DeepseekV3ForCausalLM": "Eagle3DeepseekV2ForCausalLM",
}
# speculators' transformer_layer_config.model_type -> architecture. Source: configs/speculators/algos.py.
SPECULATORS_CLASSES = {"llama": "Eagle3LlamaForCausalLM", "qwen3": "Eagle3Qwen3ForCausalLM"}

_LLAMA_025 = LoadRules(
    engine="vllm",
    draft_class="Eagle3LlamaForCausalLM",
    kind="llama",
    since="0.25.1",
    source="vllm 0.25.1 model_executor/models/llama_eagle3.py:35-433",
    renames=(("midlayer.", "layers.0."),),
    prefix="unless-contains",
    unmatched="crash",
    layer_module="layers.{i}",
    deep_norm="input_layernorm",
    num_aux=("num_aux_hidden_states", "eagle_config.eagle_aux_hidden_state_layer_ids"),
    fc_norm_keys=("fc_norm",),
    input_norm_keys=("eagle_config.norm_before_fc", "norm_before_fc"),
    reads_residual=True,
    reads_feedback=True,
    qkv_bias=True,
    o_bias_keys=("attention_bias", "bias"),
    mlp_bias_key="mlp_bias",
    bias_start="uninitialised",
    ties_head=False,
    needs_draft_vocab_key=False,
    head_absent="target",
    map_parameter="draft_id_to_target_id",
    map_when_full=True,
    map_is_parameter=True,
    own_embedding=True,
    compares_widths=True,
    reads_aux_switch=True,
    parallel=True,
    drops_norms_off=True,
    casts_to_target=True,
    quantises_fc=True,
    window="config",
)
_LLAMA_032 = replace(
    _LLAMA_025,
    since="0.32.0",
    source="vllm 0.32.0, 0.33.0 model_executor/models/llama_eagle3.py:69-470",
    map_when_full=False,
)
_QWEN3_025 = replace(
    _LLAMA_025,
    draft_class="Eagle3Qwen3ForCausalLM",
    kind="qwen3",
    source="vllm 0.25.1 model_executor/models/qwen3_eagle3.py",
    num_aux=(
        "num_aux_layers",
        "num_aux_hidden_states",
        "eagle_aux_hidden_state_layer_ids",
        "eagle_config.eagle_aux_hidden_state_layer_ids",
    ),
    o_bias_keys=(),
    mlp_bias_key=None,
    qk_norm=True,
    window="ignored",
)
_QWEN3_032 = replace(
    _QWEN3_025,
    since="0.32.0",
    source="vllm 0.32.0, 0.33.0 model_executor/models/qwen3_eagle3.py:28-447",
    map_when_full=False,
    window="config",
)
_MLA_025 = replace(
    _LLAMA_025,
    draft_class="Eagle3DeepseekV2ForCausalLM",
    kind="mla",
    source="vllm 0.25.1 model_executor/models/deepseek_eagle3.py",
    input_norm_keys=(),
    drops_norms_off=False,
    reads_aux_switch=False,
    parallel=False,
    qkv_bias=False,
    o_bias_keys=(),
    mlp_bias_key=None,
    window="ignored",
)
_MLA_032 = replace(
    _MLA_025,
    since="0.32.0",
    source="vllm 0.32.0, 0.33.0 model_executor/models/deepseek_eagle3.py:38-398",
    map_when_full=False,
)

RULES: tuple[LoadRules, ...] = (_LLAMA_025, _LLAMA_032, _QWEN3_025, _QWEN3_032, _MLA_025, _MLA_032)
