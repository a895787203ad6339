"""Where a target's embedding, final norm and head stand in its checkpoint: by name, whatever wraps the text model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eyas.contract.files.checkpoint import TensorInfo
from eyas.contract.spec.target_spec import TargetSpec
from eyas.errors import EyasError

_EMBEDDINGS = ("embed_tokens", "wte", "word_embeddings", "embeddings")
FINAL_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f", "norm_f", "embedding_norm")
_HEADS = ("lm_head", "embed_out", "output")
_PACKED = ("weight_packed", "weight_scale", "qweight")
_PLAIN = ("F32", "F16", "BF16", "F64")


class TargetPartMissing(EyasError):
    """The target has no layers, embedding, final norm or head where one can be found, or not as plain numbers."""

    code = "target-part-missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartNames:
    """Names of tensors, as stored.

    Attributes:
        embedding: [V, Ht].
        norm: [Ht], the weight of the final norm.
        norm_bias: [Ht]; None where the norm has none.
        head: [V, Ht]; the embedding's name when tied.
    """

    embedding: str
    norm: str
    norm_bias: str | None
    head: str


def name_parts(spec: TargetSpec, tensors: Mapping[str, TensorInfo]) -> PartNames:
    """The parts among `tensors`, from headers alone.

    Of several candidates the shortest name wins: the others belong to a layer of multi-token prediction or to a tower.

    Raises:
        TargetPartMissing: one is not there, or is quantised.
    """
    embedding = _matrix(spec, tensors, _EMBEDDINGS, "token embedding")
    prefix = embedding.removesuffix(".weight").rpartition(".")[0]
    beside = f"{prefix}." if prefix else ""
    norms = [name for part in FINAL_NORMS if (name := f"{beside}{part}.weight") in tensors]
    if not norms:
        raise _missing(spec, tensors, "final norm", f"{beside}* has none of {', '.join(FINAL_NORMS)}", FINAL_NORMS)
    norm = norms[0]
    if tensors[norm].shape != (spec.hidden_size,) or tensors[norm].dtype not in _PLAIN:
        raise _missing(spec, tensors, "final norm", f"{norm} is {_shown(tensors[norm])}", FINAL_NORMS)
    bias = f"{norm.removesuffix('weight')}bias"
    head = embedding if spec.tie_word_embeddings else _matrix(spec, tensors, _HEADS, "output head")
    if (head_bias := f"{head.removesuffix('weight')}bias") in tensors:
        raise _missing(spec, tensors, "output head", f"{head_bias}: a draft's teacher is a head without a bias", _HEADS)
    return PartNames(embedding=embedding, norm=norm, norm_bias=bias if bias in tensors else None, head=head)


def _matrix(spec: TargetSpec, tensors: Mapping[str, TensorInfo], parts: Sequence[str], what: str) -> str:
    endings = tuple(f"{part}.weight" for part in parts)
    named = [name for name in tensors if name.endswith(endings) and name.split(".")[-2] in parts]
    fits = [
        name
        for name in named
        if len(shape := tensors[name].shape) == 2
        and shape[1] == spec.hidden_size
        and (spec.vocab_size is None or shape[0] >= spec.vocab_size)
        and tensors[name].dtype in _PLAIN
    ]
    if not fits:
        found = ", ".join(f"{name} {_shown(tensors[name])}" for name in sorted(named, key=len)[:3])
        wanted = f"[{spec.vocab_size or 'V'}, {spec.hidden_size}] in {', '.join(_PLAIN)}"
        raise _missing(
            spec, tensors, what, f"wanted {wanted}; " + (f"found {found}" if found else "none is named"), parts
        )
    return min(fits, key=len)


def _shown(info: TensorInfo) -> str:
    return f"{info.dtype} {list(info.shape)}"


def _missing(
    spec: TargetSpec, tensors: Mapping[str, TensorInfo], what: str, why: str, parts: Sequence[str]
) -> TargetPartMissing:
    if not tensors:
        why, do = "its weight files are not here", "download the target's weights: the files that hold these parts"
    elif packed := [
        name for name in tensors if any(f"{part}.weight_" in name or f"{part}.q" in name for part in parts)
    ]:
        why = f"it is quantised ({packed[0]})"
        do = "use a checkpoint whose embedding, final norm and head are left unquantised"
    else:
        do = "report the model: this version cannot train drafts for it from stored states"
    return TargetPartMissing(f"the target has no {what} that eyas finds", spec.where, why, do)
