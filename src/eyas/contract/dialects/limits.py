"""What a format can hold, as data, and what of a draft it cannot."""

from dataclasses import dataclass

from eyas.contract.dialects.dialect import loss
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.diagnostic import Diagnostic

ALL_AUX_NORMS = frozenset({"none", "over-concat", "per-state"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatLimits:
    """A format's abilities; the defaults are those of a format that holds everything.

    Attributes:
        aux_norms, mla_aux_norms: norms of the aux input, for GQA and for MLA drafts.
        rope_types: scaling types, None = any.
        fixed_aux: exactly three aux states at the default boundaries.
    """

    format: str
    residual_post: bool = True
    feedback_post: bool = True
    qk_norm: bool = True
    attention_bias: bool = True
    mlp_bias: bool = True
    fc_bias: bool = True
    sliding_window: bool = True
    mla: bool = True
    max_layers: int | None = None
    mla_layers: int | None = 1
    aux_norms: frozenset[str] = ALL_AUX_NORMS
    mla_aux_norms: frozenset[str] = ALL_AUX_NORMS
    rope_types: frozenset[str] | None = None
    interleaved_gqa: bool = False
    own_embedding: bool = True
    target_hidden_size: bool = True
    quantization: bool = True
    fixed_aux: bool = False


# code -> the switch of `DraftSpec` that is lost, and what the format lacks
_SAYS = {
    "loss-mla": ("draft_class", "has no MLA drafts"),
    "loss-layers": ("num_layers", "holds {layers} layer(s), the draft has {spec.num_layers}"),
    "loss-num-aux": ("num_aux", "takes {aux} aux states, the draft has {spec.num_aux}"),
    "loss-target-hidden-size": (
        "target_hidden_size",
        "needs equal widths, the target has {spec.target_hidden_size}, the draft {spec.hidden_size}",
    ),
    "loss-quantization": ("quantization", "has no place for a quantised draft"),
    "loss-residual": ("residual", "has no norm_before_residual: the residual would be taken before the norm"),
    "loss-feedback": ("feedback", "has no norm_output: the pre-norm state would be fed back"),
    "loss-aux-norm": ("aux_norm", "has no norm of the aux input of the kind {spec.aux_norm}"),
    "loss-qk-norm": ("qk_norm", "has no q_norm and k_norm"),
    "loss-attention-bias": ("attention_bias", "has no biases on q, k and v"),
    "loss-mlp-bias": ("mlp_bias", "has no biases in the MLP"),
    "loss-fc-bias": ("fc_bias", "has no bias on fc"),
    "loss-sliding-window": (
        "sliding_window",
        "has no sliding window (the draft's is {spec.sliding_window}): attention would be full",
    ),
    "loss-rope": ("rope", "has no RoPE scaling of the type {scaling}"),
    "loss-rope-interleaved": ("rope", "rotates {pairs} only, the draft was trained otherwise"),
    "loss-embedding": ("embedding", "never holds embed_tokens: the target's embedding would be used"),
}
# a draft written without one of these has no function
_HOPELESS = ("loss-mla", "loss-layers", "loss-num-aux", "loss-target-hidden-size", "loss-quantization")


def losses(spec: DraftSpec, limits: FormatLimits) -> tuple[Diagnostic, ...]:
    """Everything of `spec` that the format cannot hold, in reading order; () = it can hold the draft."""
    is_mla = spec.draft_class == "mla"
    layers = limits.mla_layers if is_mla else limits.max_layers
    scaling = spec.rope.scaling["rope_type"] if spec.rope.scaling else "default"
    is_held = {
        "loss-mla": limits.mla or not is_mla,
        "loss-layers": layers is None or spec.num_layers <= layers,
        "loss-num-aux": spec.num_aux == 3 or (not limits.fixed_aux and spec.num_aux > 0),
        "loss-target-hidden-size": limits.target_hidden_size or spec.target_hidden_size == spec.hidden_size,
        "loss-quantization": limits.quantization or spec.quantization is None,
        "loss-residual": limits.residual_post or spec.residual != "post-norm",
        "loss-feedback": limits.feedback_post or spec.feedback != "post-norm",
        "loss-aux-norm": spec.aux_norm in (limits.mla_aux_norms if is_mla else limits.aux_norms),
        "loss-qk-norm": limits.qk_norm or not spec.qk_norm,
        "loss-attention-bias": limits.attention_bias or not spec.attention_bias,
        "loss-mlp-bias": limits.mlp_bias or not spec.mlp_bias,
        "loss-fc-bias": limits.fc_bias or not spec.fc_bias,
        "loss-sliding-window": limits.sliding_window or spec.sliding_window is None,
        "loss-rope": limits.rope_types is None or scaling in limits.rope_types,
        "loss-rope-interleaved": spec.rope.interleaved
        is (is_mla or (limits.interleaved_gqa and spec.rope.interleaved)),
        "loss-embedding": limits.own_embedding or spec.embedding != "own",
    }
    words = {"spec": spec, "layers": layers, "scaling": scaling, "pairs": "adjacent pairs" if is_mla else "halves"}
    words["aux"] = "exactly 3" if limits.fixed_aux else "one or more"
    return tuple(
        loss(code, switch, f"{limits.format} {text.format_map(words)}", is_allowable=code not in _HOPELESS)
        for code, (switch, text) in _SAYS.items()
        if not is_held[code]
    )


def dropped_by(spec: DraftSpec, lost: tuple[Diagnostic, ...]) -> dict[str, str]:
    """Canonical name -> loss code of the tensors that go with the losses."""
    patterns = {
        "loss-aux-norm": ("input_norm.", "fc_norm."),
        "loss-qk-norm": ("q_norm.", "k_norm."),
        "loss-attention-bias": ("q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"),
        "loss-mlp-bias": ("gate_proj.bias", "up_proj.bias", "down_proj.bias"),
        "loss-fc-bias": ("fc.bias",),
        "loss-embedding": ("embed_tokens.",),
    }
    found: dict[str, str] = {}
    for code in (found_loss.code for found_loss in lost):
        found.update({n: code for n in spec.tensors if any(part in n for part in patterns.get(code, ()))})
    return found
