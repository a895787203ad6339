"""SGLang's draft loaders by version. Source: srt/models/llama_eagle3.py, kimi_k25_eagle3.py of the versions named."""

from dataclasses import replace

from eyas.contract.engines.loading.load_rules import LoadRules

# Draft classes that exist but draft as EAGLE-1/2: they have no fc over aux states.
OLD_DRAFT_CLASSES = frozenset(
    {"LlamaForCausalLMEagle", "Qwen2ForCausalLMEagle", "MistralForCausalLMEagle", "MistralLarge3ForCausalLMEagle"}
)

_LLAMA_059 = LoadRules(
    engine="sglang",
    draft_class="LlamaForCausalLMEagle3",
    kind="llama",
    since="0.5.9",
    source="sglang 0.5.9 srt/models/llama_eagle3.py:43-273",
    prefix="try",
    unmatched="silent",
    layer_module="midlayer",
    max_layers=1,
    deep_norm="hidden_norm",
    num_aux=(),
    reads_residual=False,
    reads_feedback=False,
    qkv_bias=False,
    o_bias_keys=("attention_bias", "bias"),
    fc_bias_key="bias",
    bias_start="zeros",
    ties_head=True,
    needs_draft_vocab_key=True,
    head_absent="uninitialised",
    map_parameter="hot_token_id",
    map_when_full=True,
    own_embedding=False,
    head_by_key=True,
    skips_square_fc=True,
    # Source: llama_eagle3.py: `if config.model_type == "llama4_text"`
    mlp_widths=(("llama4_text", "intermediate_size_mlp", 16384),),
    pads_short=True,
)
_LLAMA_0512 = replace(
    _LLAMA_059,
    since="0.5.12",
    source="sglang 0.5.12 srt/models/llama_eagle3.py:48-348",
    renames=(
        ("midlayer", "layers.0"),
        ("aux_norm_low", "fc_norm.0"),
        ("aux_norm_mid", "fc_norm.1"),
        ("aux_norm_high", "fc_norm.2"),
    ),
    layer_module="layers.{i}",
    max_layers=None,
    num_aux=("num_aux_hidden_states", "eagle_config.eagle_aux_hidden_state_layer_ids"),
    fc_norm_keys=("fc_norm", "use_aux_norm"),
    reads_feedback=True,
    window="flag",
)
_LLAMA_0517 = replace(
    _LLAMA_0512,
    since="0.5.17",
    source="sglang 0.5.17, 0.5.23 srt/models/llama_eagle3.py:48-378",
    input_norm_keys=("eagle_config.norm_before_fc", "norm_before_fc"),
)
_MLA_0512 = LoadRules(
    engine="sglang",
    draft_class="Eagle3DeepseekV2ForCausalLM",
    kind="mla",
    since="0.5.12",
    source="sglang 0.5.12 srt/models/kimi_k25_eagle3.py:60-470",
    rename_at_start=(("layers.0.", "midlayer."),),
    map_match="suffix",
    prefix="unless-starts",
    unmatched="warning",
    layer_module="midlayer",
    max_layers=1,
    deep_norm="hidden_norm",
    num_aux=("eagle_config.eagle_aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids"),
    reads_residual=False,
    reads_feedback=False,
    qkv_bias=False,
    fc_bias_key="bias",
    bias_start="zeros",
    ties_head=True,
    needs_draft_vocab_key=False,
    head_absent="uninitialised",
    map_parameter="hot_token_id",
    map_when_full=True,
    own_embedding=False,
    head_by_key=True,
    needs_q_lora_rank=True,
    takes_null_width=True,
    skips_square_fc=True,
    pads_short=True,
    fused_a="fused_qkv_a_proj_with_mqa",
    fuses_a_by_pair=True,
)
_MLA_0513 = replace(
    _MLA_0512,
    since="0.5.13",
    source="sglang 0.5.13 srt/models/kimi_k25_eagle3.py:190-300",
    fc_norm_keys=("fc_norm", "use_aux_norm"),
    reads_feedback=True,
)
_MLA_0515 = replace(
    _MLA_0513,
    since="0.5.15",
    source="sglang 0.5.15.post1, 0.5.23 srt/models/kimi_k25_eagle3.py:48-523",
    fc_is_sharded=True,
    quantises_fc=True,
)

RULES: tuple[LoadRules, ...] = (_LLAMA_059, _LLAMA_0512, _LLAMA_0517, _MLA_0512, _MLA_0513, _MLA_0515)
