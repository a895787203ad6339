"""How large a target is, from tensor headers: parameters, those that one token uses, bytes. No weight is read."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from eyas.contract.files.checkpoint import TensorInfo
from eyas.contract.spec.target_spec import TargetSpec

_EXPERTS = ".experts."
_BESIDE_LAYERS = ("embed_tokens", "wte.", "lm_head", "vision", "visual", "audio", "projector")
_NUM_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")
# Values in one stored number: mxfp4 blocks (gpt-oss), int4 packed by compressed-tensors (Kimi-K2.5).
_PACKED = {"_blocks": 2, "weight_packed": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSize:
    """Sizes of a target's weights.

    Attributes:
        num_params: all of them, towers of a wrapper included.
        num_active: those in the decoder layers that one text token goes through: of the experts only those chosen,
            no embedding, head or tower.
        num_bytes: as stored.
    """

    num_params: int
    num_active: int
    num_bytes: int


def size_of_tensors(spec: TargetSpec, tensors: Mapping[str, TensorInfo]) -> TargetSize:
    """The size of a checkpoint from its headers."""
    counted = [(name, prod(info.shape) * _values_in_one(name)) for name, info in tensors.items()]
    return size_of_counts(spec, counted, num_bytes=sum(info.num_bytes for info in tensors.values()))


def size_of_counts(spec: TargetSpec, counted: Iterable[tuple[str, int]], *, num_bytes: int) -> TargetSize:
    """The size from (tensor name, number of parameters)."""
    total = dense = experts = 0
    for name, count in counted:
        total += count
        if _EXPERTS in name:
            experts += count
        elif not any(part in name for part in _BESIDE_LAYERS):
            dense += count
    num_active = dense + int(experts * _share_of_experts(spec))
    return TargetSize(num_params=total, num_active=num_active, num_bytes=num_bytes)


def _share_of_experts(spec: TargetSpec) -> float:
    text = spec.text_config
    chosen = text.get("num_experts_per_tok", text.get("experts_per_token"))
    num = next((text[key] for key in _NUM_EXPERTS if isinstance(text.get(key), int) and text[key] > 0), None)
    return chosen / num if isinstance(chosen, int) and num else 1.0


def _values_in_one(name: str) -> int:
    return next((values for ending, values in _PACKED.items() if name.endswith(ending)), 1)
