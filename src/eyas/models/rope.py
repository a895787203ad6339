"""Rotary position embedding of a draft, from the effective `Rope` of its `DraftSpec`.

Knows theta, scaling (through transformers' own table of kinds), the rotated share of a head and the two pairings.
"""

import torch
from torch import Tensor

from eyas.contract.spec.draft_spec import Rope
from eyas.errors import EyasError


class RopeUnsupported(EyasError):
    """The draft's RoPE is of a kind, or has values, that the installed transformers cannot compute with."""

    code = "rope-unsupported"


class Rotary:
    """Turns queries and keys by their positions.

    Not a module: its frequencies stay fp32 whatever the draft is cast to (bf16 angles are wrong from position 256 on).

    Args:
        rope: the effective parameters.
        head_dim: width of a head (of its rotated part for MLA).
        max_positions: `max_position_embeddings`, which some kinds of scaling read.
    """

    def __init__(self, rope: Rope, head_dim: int, max_positions: int) -> None:
        self.interleaved = rope.interleaved
        self.num_rotated = int(head_dim * rope.partial_rotary_factor)
        self._frequencies, self.scale = inverse_frequencies(rope, head_dim, max_positions)

    def angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines at `positions` [B or 1, T], as two [B or 1, 1, T, R] tensors of `dtype`."""
        if self._frequencies.device != positions.device:
            self._frequencies = self._frequencies.to(positions.device)
        angles = positions[:, None, :, None].float() * self._frequencies
        angles = angles.repeat_interleave(2, -1) if self.interleaved else torch.cat((angles, angles), -1)
        return (angles.cos() * self.scale).to(dtype), (angles.sin() * self.scale).to(dtype)

    def turn(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """`heads` [B, N, T, head_dim] turned by the angles; what lies beyond the rotated share is left as it is."""
        rotated, rest = heads[..., : self.num_rotated], heads[..., self.num_rotated :]
        partner = _interleaved_partner(rotated) if self.interleaved else _half_partner(rotated)
        turned = rotated * cos + partner * sin
        return turned if rest.shape[-1] == 0 else torch.cat((turned, rest), -1)


def inverse_frequencies(rope: Rope, head_dim: int, max_positions: int) -> tuple[Tensor, float]:
    """Inverse frequencies [R / 2] in fp32, and the factor on cosines and sines (1 unless YaRN or LongRoPE).

    Raises:
        RopeUnsupported: transformers does not know the scaling's `rope_type`, or cannot compute with its values.

    Source: transformers modeling_rope_utils.py, which SGLang and vLLM agree with for these kinds.
    """
    kind = _kind(rope)
    try:
        frequencies, scale = _frequencies(rope, kind, head_dim, max_positions)
    except (TypeError, ValueError, LookupError, ArithmeticError, RuntimeError) as error:
        raise _unsupported(kind, f"{type(error).__name__}: {str(error)[:200]}") from error
    if not (len(frequencies) and frequencies.isfinite().all() and 0 < scale < float("inf")):
        raise _unsupported(kind, f"theta {rope.theta} and {rope.scaling} do not give finite angles")
    return frequencies, scale


def _frequencies(rope: Rope, kind: str, head_dim: int, max_positions: int) -> tuple[Tensor, float]:
    if kind == "default":
        num_rotated = int(head_dim * rope.partial_rotary_factor)
        if not 0 < num_rotated <= head_dim:
            raise ValueError(f"partial_rotary_factor {rope.partial_rotary_factor} rotates {num_rotated} of {head_dim}")
        exponents = torch.arange(0, num_rotated, 2, device="cpu").float() / num_rotated
        return 1.0 / rope.theta**exponents, 1.0
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if kind not in ROPE_INIT_FUNCTIONS:
        raise _unsupported(kind, f"the installed transformers knows {sorted(ROPE_INIT_FUNCTIONS)}")
    parameters = {
        **(rope.scaling or {}),
        "rope_type": kind,
        "rope_theta": rope.theta,
        "partial_rotary_factor": rope.partial_rotary_factor,
    }
    config = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        rope_parameters=parameters,
    )
    with torch.device("cpu"):  # real numbers also when the draft is being built on the meta device
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return frequencies.float(), float(scale)


def _unsupported(kind: str, why: str) -> RopeUnsupported:
    return RopeUnsupported(
        f"RoPE of kind '{kind}' cannot be computed",
        "config.json: rope_scaling, rope_parameters",
        why,
        "correct the kind and its values, or upgrade transformers",
    )


def _kind(rope: Rope) -> str:
    scaling = rope.scaling or {}
    return str(scaling.get("rope_type") or scaling.get("type") or "default")


def _half_partner(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def _interleaved_partner(x: Tensor) -> Tensor:
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((-odd, even), -1).flatten(-2)
