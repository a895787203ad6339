"""Config keys as data: those that decide something in some engine or trainer, and those known to be inert.

A key on neither list is an error: what it decides is not known. Source: the config classes and loaders of SGLang
0.5.9-0.5.23, vLLM 0.25.1-0.33.0, speculators 0.9.0, SpecForge, ModelOpt, TorchSpec, AngelSlim, EAGLE.
"""

from collections.abc import Callable, Mapping
from typing import Any

from eyas.contract.spec.rope import ROPE_KEYS

SIZE_KEYS = frozenset({
    "architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "vocab_size", "draft_vocab_size", "rms_norm_eps", "hidden_act",
    "max_position_embeddings", "original_max_position_embeddings", "tie_word_embeddings", "attention_bias", "mlp_bias",
    "bias", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types", "quantization_config",
    "compression_config", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
}) | ROPE_KEYS  # fmt: skip
SWITCH_KEYS = frozenset({
    "target_hidden_size", "num_aux_hidden_states", "num_aux_layers", "eagle_aux_hidden_state_layer_ids",
    "norm_before_residual", "norm_before_fc", "fc_norm", "use_aux_norm", "norm_output", "eagle_config",
    "draft_vocab_size", "tie_word_embeddings",
})  # fmt: skip
EAGLE_CONFIG_KEYS = frozenset({
    "eagle_aux_hidden_state_layer_ids", "use_aux_hidden_state", "norm_before_fc", "return_hidden_post_norm",
})  # fmt: skip
# Two names of one thing. SGLang's `--dtype auto` looks at the draft's own (none or float32: it computes in float16);
# vLLM gives a draft the target's.
DTYPE_KEYS = frozenset({"torch_dtype", "dtype"})
SPECULATORS_KEYS = frozenset({
    "speculators_config", "speculators_model_type", "speculators_version", "transformer_layer_config",
})  # fmt: skip

# keys that must have one of these values; another value is a function that eyas does not know
FIXED_VALUES: Mapping[str, tuple[Any, ...]] = {
    "logit_scale": (1, None),
    "pretraining_tp": (1, None),
    "eagle_config.use_input_layernorm_in_first_layer": (True, None),
    "eagle_config.use_last_layernorm": (True, None),
    "eagle_config.use_mtp_layernorm": (False, None),
    "eagle_config.next_layer_regular": (True, None),
    "eagle_config.eh_proj_before_attn": (False, None),
    "eagle_config.eh_proj_bias": (False, None),
    "eagle_config.parallel_draft_step": (1, 0, None),
    "eagle_config.parallel_draft_heads_num_layers": (0, 1, None),
    "eagle_config.has_lm_head": (True, False, None),
    "eagle_config.head_type": ("none", "lm_head", None),
}
# the token that a draft which proposes all tokens in one pass (P-EAGLE) reads at places not drafted yet, best first
MASK_TOKEN_KEYS = ("mask_token_id", "pard_token", "ptd_token_id")
TOKEN_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", *MASK_TOKEN_KEYS)

# without effect on what an EAGLE-3 draft computes in any engine
INERT_KEYS = frozenset({
    *TOKEN_KEYS, "attention_dropout", "initializer_range", "transformers_version", "use_cache",
    "auto_map", "_name_or_path", "name_or_path", "has_no_defaults_at_init", "embed_requires_grad",
    "_attn_implementation",
    "_torchspec_version", "torchspec_version", "target_model_type", "target_model_name_or_path", "specforge_version",
    "modelopt_version", "producer", "eyas_version", "num_nextn_predict_layers", "hidden_dropout", "resid_pdrop",
    "residual_dropout", "embd_pdrop", "model_max_length", "num_lookahead_tokens", "length", "ttt_length",
    "speculative_tokens", "truncated_vocab_size",
    # of every transformers config
    "_commit_hash", "add_cross_attention", "bad_words_ids", "begin_suppress_tokens", "chunk_size_feed_forward",
    "cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "id2label", "is_decoder", "is_encoder_decoder", "label2id", "length_penalty", "max_length",
    "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "output_attentions",
    "output_hidden_states", "output_scores", "prefix", "problem_type", "pruned_heads", "remove_invalid_values",
    "repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id", "suppress_tokens",
    "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p",
    "torchscript", "typical_p", "use_bfloat16",
    # mixture of experts in the configs that MLA drafts copy: the draft's MLP is dense
    "aux_loss_alpha", "ep_size", "first_k_dense_replace", "moe_intermediate_size", "moe_layer_freq", "n_group",
    "n_routed_experts", "n_shared_experts", "norm_topk_prob", "num_experts_per_tok", "routed_scaling_factor",
    "scoring_func", "seq_aux", "topk_group", "topk_method", "num_experts", "num_local_experts", "decoder_sparse_step",
    "router_aux_loss_coef", "output_router_logits", "mlp_only_layers", "shared_expert_intermediate_size",
})  # fmt: skip

KNOWN_KEYS = (
    SIZE_KEYS | SWITCH_KEYS | DTYPE_KEYS | INERT_KEYS | frozenset(key for key in FIXED_VALUES if "." not in key)
)
KNOWN_EAGLE_CONFIG_KEYS = EAGLE_CONFIG_KEYS | frozenset(
    key.split(".", 1)[1] for key in FIXED_VALUES if key.startswith("eagle_config.")
)


_MOST_AUX = 64


def _is_id(value: Any) -> bool:
    return type(value) is int and -1 <= value < 1 << 31


# keys that engines (or transformers' config classes in them) read, but nothing here: only their kind is checked
_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "use_sliding_window": (lambda value: isinstance(value, bool), "true or false"),
    "use_cache": (lambda value: isinstance(value, bool), "true or false"),
    "max_window_layers": (lambda value: type(value) is int and 0 <= value < 1 << 31, "a whole number"),
    "num_aux_hidden_states": (lambda value: type(value) is int and 0 < value <= _MOST_AUX, "a positive integer"),
    "num_aux_layers": (lambda value: type(value) is int and 0 < value <= _MOST_AUX, "a positive integer"),
    "layer_types": (
        lambda value: isinstance(value, list) and all(isinstance(kind, str) for kind in value),
        "a list of strings",
    ),
    **dict.fromkeys(DTYPE_KEYS, (lambda value: isinstance(value, str) and bool(value), "the name of a number type")),
    "quantization_config": (lambda value: isinstance(value, Mapping), "an object"),
    "compression_config": (lambda value: isinstance(value, Mapping), "an object"),
    "architectures": (
        lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
        "a list of strings",
    ),
    **dict.fromkeys(
        TOKEN_KEYS,
        (lambda value: all(map(_is_id, value)) if isinstance(value, list) else _is_id(value), "a token id, or several"),
    ),
}


def type_faults(config: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    """(key, value, what it must be) of what an engine would crash on, though it decides nothing here."""
    return [
        (key, config[key], wanted)
        for key, (is_right, wanted) in _KINDS.items()
        if config.get(key) is not None and not is_right(config[key])
    ]
