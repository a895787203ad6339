"""What a format can hold, as data, and what of a draft that leaves out."""

from dataclasses import dataclass

from eyas.contract.dialects.dialect import loss
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.diagnostic import Diagnostic

ALL_AUX_NORMS = frozenset({"none", "over-concat", "per-state"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
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


def losses(spec: DraftSpec, limits: Limits) -> tuple[Diagnostic, ...]:
    """Everything of `spec` that the format cannot hold, in reading order; () = it can hold the draft."""
    return tuple(
        loss(code, switch, f"{limits.format} {what}", is_allowable=is_allowable)
        for is_lost, code, switch, what, is_allowable in (*_structure(spec, limits), *_switches(spec, limits))
        if is_lost
    )


_Row = tuple[bool, str, str, str, bool]


def _structure(spec: DraftSpec, limits: Limits) -> tuple[_Row, ...]:
    is_mla = spec.draft_class == "mla"
    layers = limits.mla_layers if is_mla else limits.max_layers
    too_deep = layers is not None and spec.num_layers > layers
    return (
        (is_mla and not limits.mla, "loss-mla", "draft_class", "has no MLA drafts", False),
        (too_deep, "loss-layers", "num_layers", f"holds {layers} layer(s), the draft has {spec.num_layers}", False),
        (
            limits.fixed_aux and spec.num_aux != 3,
            "loss-num-aux",
            "num_aux",
            f"takes exactly 3 aux states, the draft has {spec.num_aux}",
            False,
        ),
        (
            not limits.target_hidden_size and spec.target_hidden_size != spec.hidden_size,
            "loss-target-hidden-size",
            "target_hidden_size",
            f"needs equal widths, the target has {spec.target_hidden_size}, the draft {spec.hidden_size}",
            False,
        ),
        (
            spec.quantization is not None and not limits.quantization,
            "loss-quantization",
            "quantization",
            "has no place for a quantised draft",
            False,
        ),
    )


def _switches(spec: DraftSpec, limits: Limits) -> tuple[_Row, ...]:
    is_mla = spec.draft_class == "mla"
    norms = limits.mla_aux_norms if is_mla else limits.aux_norms
    scaling = spec.rope.scaling["rope_type"] if spec.rope.scaling else "default"
    wrong_pairs = spec.rope.interleaved is not (is_mla or (limits.interleaved_gqa and spec.rope.interleaved))
    return (
        (
            spec.residual == "post-norm" and not limits.residual_post,
            "loss-residual",
            "residual",
            "has no norm_before_residual: the residual would be taken before the norm",
            True,
        ),
        (
            spec.feedback == "post-norm" and not limits.feedback_post,
            "loss-feedback",
            "feedback",
            "has no norm_output: the pre-norm state would be fed back",
            True,
        ),
        (
            spec.aux_norm not in norms,
            "loss-aux-norm",
            "aux_norm",
            f"has no norm of the aux input of the kind {spec.aux_norm}",
            True,
        ),
        (spec.qk_norm and not limits.qk_norm, "loss-qk-norm", "qk_norm", "has no q_norm and k_norm", True),
        (
            spec.attention_bias and not limits.attention_bias,
            "loss-attention-bias",
            "attention_bias",
            "has no biases on q, k and v",
            True,
        ),
        (spec.mlp_bias and not limits.mlp_bias, "loss-mlp-bias", "mlp_bias", "has no biases in the MLP", True),
        (spec.fc_bias and not limits.fc_bias, "loss-fc-bias", "fc_bias", "has no bias on fc", True),
        (
            spec.sliding_window is not None and not limits.sliding_window,
            "loss-sliding-window",
            "sliding_window",
            f"has no sliding window (the draft's is {spec.sliding_window}): attention would be full",
            True,
        ),
        (
            limits.rope_types is not None and scaling not in limits.rope_types,
            "loss-rope",
            "rope",
            f"has no RoPE scaling of the type {scaling}",
            True,
        ),
        (
            wrong_pairs,
            "loss-rope-interleaved",
            "rope",
            f"rotates {'adjacent pairs' if is_mla else 'halves'} only, the draft was trained otherwise",
            True,
        ),
        (
            spec.embedding == "own" and not limits.own_embedding,
            "loss-embedding",
            "embedding",
            "never holds embed_tokens: the target's embedding would be used",
            True,
        ),
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
