"""`DraftSpec`: everything that decides the function a draft computes, in one immutable object.

Canonical tensor names (every dialect translates to and from these):
    fc.weight [H, A*Ht]   input_norm.weight [A*Ht]   fc_norm.{a}.weight [Ht]
    layers.{i}.input_layernorm.weight, .hidden_norm.weight, .post_attention_layernorm.weight [H]
    layers.{i}.self_attn.{q,k,v,o}_proj.{weight,bias} (q, k, v of layer 0: 2H wide), .self_attn.{q,k}_norm.weight
    layers.{i}.self_attn.{q_a_proj,q_a_layernorm,q_b_proj,kv_a_proj_with_mqa,kv_a_layernorm,kv_b_proj,o_proj}  (MLA)
    layers.{i}.mlp.{gate,up,down}_proj.{weight,bias}
    norm.weight [H]   lm_head.weight [D, H]   embed_tokens.weight [V, H]   d2t [D] offsets   t2d [V] bool
Shape letters: H draft hidden, Ht target hidden, A aux states, D draft vocabulary, V target vocabulary (padded).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from eyas.contract.files.checkpoint import Checkpoint, IntMap, TensorInfo
from eyas.diagnostic import Diagnostic

# words of `DraftSpec.provenance` that findings ask for: a size that the config does not state
HEAD_ROWS = "rows of lm_head.weight"
FC_COLUMNS = "columns of fc / target_hidden_size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Effective rotary embedding, whichever of the two spellings (transformers 4 or 5) it was written in.

    Attributes:
        theta: base.
        scaling: scaling parameters without theta, with `rope_type`; None for plain RoPE.
        partial_rotary_factor: share of head_dim that is rotated.
        interleaved: pairs are (0, 1), (2, 3) ... instead of halves.
    """

    theta: float = 10000.0
    scaling: Mapping[str, Any] | None = None
    partial_rotary_factor: float = 1.0
    interleaved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla:
    """Sizes of a multi-head latent attention draft (`Eagle3DeepseekV2ForCausalLM`)."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSpec:
    """A draft as a function (docs/semantics.md): sizes, semantic switches, tensors under canonical names.

    Attributes:
        residual: the residual of layer 0 is the fused state before (`pre-norm`, EAGLE-3) or after `hidden_norm`.
        num_aux: tapped target states; 0 = the draft sees the target's last hidden state and has no fc.
        aux_norm: norm of the aux input: `none`, one over A*Ht (`over-concat`, key norm_before_fc, tensor input_norm)
            or one per state (`per-state`, key fc_norm).
        feedback: state fed to the next step: before (`pre-norm`, EAGLE-3) or after the final norm (`post-norm`,
            key norm_output, "3.1").
        aux_boundaries: tapped target states in `fc` order, as the number of decoder layers applied (0 ... N);
            None when the checkpoint does not say and the target's depth is unknown.
        embedding: `own` (in the checkpoint) or `target`.
        head: `own`, `target` (absent here), `tied` (to the embedding).
        layer_types: one of `full_attention`, `sliding_attention` per layer; () when all are full. `sliding_window` is
            None unless some layer slides.
        model_type: the decoder layer's family as the config names it (`llama`, `qwen3`, `kimi_k2` ...).
        fc_bias, attention_bias, mlp_bias: the linear layers have biases (attention: q, k, v; o where stored).
        quantization: the draft's own quantization_config, None for plain weights.
        token_ids: bos, eos, pad ... as the config names them; carried along, of no effect on the function.
        dialect: format that it was read from; "" when made in memory.
        trained_length: longest sequence seen in training, tokens; None when unknown.
        target: identity of the target it was trained for (name, architectures, fingerprint ...), None when unknown.
        provenance: field name -> where its value came from, for a person ("config.json: rope_theta", "default of ...").
        tensors: canonical name -> header entry (its `file`, `begin`, `end` point at the source data).
        source_names: canonical name -> name in the source checkpoint.
    """

    draft_class: Literal["gqa", "mla"] = "gqa"
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_layers: int = 1
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    num_aux: int = 3
    rms_norm_eps: float = 1e-6
    activation: str = "silu"
    rope: Rope = field(default_factory=Rope)
    max_position_embeddings: int = 2048
    sliding_window: int | None = None
    qk_norm: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    fc_bias: bool = False
    layer_types: tuple[str, ...] = ()
    model_type: str = "llama"
    quantization: Mapping[str, Any] | None = None
    token_ids: Mapping[str, Any] = field(default_factory=dict)
    dialect: str = ""
    mla: Mla | None = None
    residual: Literal["pre-norm", "post-norm"] = "pre-norm"
    aux_norm: Literal["none", "over-concat", "per-state"] = "none"
    feedback: Literal["pre-norm", "post-norm"] = "pre-norm"
    aux_boundaries: tuple[int, ...] | None = None
    embedding: Literal["own", "target"] = "target"
    head: Literal["own", "target", "tied"] = "own"
    trained_length: int | None = None
    target: Mapping[str, Any] | None = None
    provenance: Mapping[str, str] = field(default_factory=dict, repr=False)
    tensors: Mapping[str, TensorInfo] = field(default_factory=dict, repr=False)
    source_names: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def has_vocab_map(self) -> bool:
        """The draft vocabulary is a proper part of the target's: `d2t` is needed."""
        return self.draft_vocab_size != self.vocab_size


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftReading:
    """A draft as understood.

    Attributes:
        spec: the function; sizes and switches from the config, completed from the tensors.
        checkpoint: what it was read from.
        dialect: name of the format.
        evidence: what the format was recognised by, one short sentence each.
        int_maps: "d2t" / "t2d" -> contents, by canonical name.
        findings: about the config and the names; `draft_findings` adds those about tensors, maps and the target.
    """

    spec: DraftSpec
    checkpoint: Checkpoint
    dialect: str
    evidence: tuple[str, ...]
    int_maps: Mapping[str, IntMap] = field(default_factory=dict, repr=False)
    findings: tuple[Diagnostic, ...] = ()
