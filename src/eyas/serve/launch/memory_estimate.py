"""What target, draft and their caches take on each GPU, from headers and configs alone, beside the GPU's memory.

Exact: weights and bytes per cached token. Rough: CUDA graphs and activations, given as the range seen on an H200
(vLLM 0.25.1: 0.6-1.2 GiB of graphs; SGLang 0.5.15.post1: 1.2 GiB).
"""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from eyas.contract.files.checkpoint import Checkpoint
from eyas.diagnostic import Diagnostic

GIB = 1 << 30
_WHOLE = ("fc.weight", "norm.weight", "d2t", "t2d")
_GRAPHS_AND_ACTIVATIONS = (1 * GIB, 4 * GIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes on each GPU.

    Attributes:
        target_weights, draft_weights: this GPU's share of the checkpoints; None without headers.
        target_per_token, draft_per_token: KV cache of one token; None where the config does not tell.
        context_length: longest sequence, tokens; None if unsaid.
        gpu_total: smallest GPU of this machine; None if not readable.
        share: part of it that the engine uses for weights and caches.
    """

    target_weights: int | None
    draft_weights: int | None
    target_per_token: int | None
    draft_per_token: int | None
    context_length: int | None
    gpu_total: int | None
    share: float
    gpu_note: str = ""

    @property
    def cached_tokens(self) -> int | None:
        """Tokens that fit in the caches, at the pessimistic end; None if something is not known."""
        parts = (self.target_weights, self.draft_weights, self.target_per_token, self.draft_per_token, self.gpu_total)
        if any(p is None for p in parts):
            return None
        weights, draft, per_target, per_draft, total = (int(p or 0) for p in parts)
        left = int(total * self.share) - weights - draft - _GRAPHS_AND_ACTIVATIONS[1]
        return max(0, left // (per_target + per_draft))

    def findings(self) -> tuple[Diagnostic, ...]:
        """What will not fit."""
        tokens = self.cached_tokens
        needed = self.context_length or 2048
        if tokens is None or tokens >= needed:
            return ()
        return (
            Diagnostic(
                code="memory-too-small",
                severity="error" if tokens == 0 else "warning",
                what=f"the caches would hold about {tokens} tokens, one sequence may need {needed}",
                where="GPU memory",
                why=str(self).replace("\n", "; "),
                do="use a larger --tensor-parallel, a shorter --context-length or a quantised target",
            ),
        )

    def __str__(self) -> str:
        low, high = (part / GIB for part in _GRAPHS_AND_ACTIVATIONS)
        lines = [
            f"memory per GPU: weights {_gib(self.target_weights)} target + {_gib(self.draft_weights)} draft",
            f"  KV cache {_kib(self.target_per_token)} target + {_kib(self.draft_per_token)} draft a token",
            f"  CUDA graphs and activations {low:g}-{high:g} GiB (a range, not computed)",
        ]
        if self.gpu_total is None:
            lines.append(f"  GPU memory: {self.gpu_note}")
        else:
            lines.append(f"  GPU: {_gib(self.gpu_total)}, {self.share:.0%} of it for weights and caches")
            if self.cached_tokens is not None:
                lines.append(f"  room for about {self.cached_tokens:,} cached tokens")
        return "\n".join(lines)


def estimate_memory(
    target: Checkpoint | None,
    draft: Checkpoint | None,
    *,
    tensor_parallel: int,
    context_length: int | None,
    share: float,
    gpu: tuple[int | None, str] = (None, "not asked"),
    kv_bytes: int = 2,
) -> MemoryEstimate:
    """The estimate for one launch.

    Args:
        share: part of a GPU's memory that the engine takes for weights and caches.
        gpu: total bytes of the smallest GPU or None, and a note when None (`smallest_gpu`).
        kv_bytes: bytes per cached number (2 for bf16, 1 for fp8).
    """
    return MemoryEstimate(
        target_weights=_weights(target, tensor_parallel),
        draft_weights=_weights(draft, tensor_parallel),
        target_per_token=kv_bytes_per_token(target.config, tensor_parallel, kv_bytes) if target else None,
        draft_per_token=kv_bytes_per_token(draft.config, tensor_parallel, kv_bytes) if draft else None,
        context_length=context_length,
        gpu_total=gpu[0],
        gpu_note=gpu[1],
        share=share,
    )


def kv_bytes_per_token(config: Mapping[str, Any], tensor_parallel: int, kv_bytes: int = 2) -> int | None:
    """KV cache of one token on one GPU.

    Ordinary attention: 2 * layers * KV heads of this GPU * head width; heads fewer than GPUs are repeated. MLA: one
    compressed vector per layer, the same on every GPU.
    """
    for part in (config.get("text_config"), config.get("transformer_layer_config"), config):
        if isinstance(part, Mapping) and isinstance(part.get("num_hidden_layers"), int):
            layers = int(part["num_hidden_layers"])
            if isinstance(part.get("kv_lora_rank"), int):
                rope = part.get("qk_rope_head_dim", 0)
                return layers * kv_bytes * (int(part["kv_lora_rank"]) + rope) if isinstance(rope, int) else None
            heads = part.get("num_attention_heads")
            hidden = part.get("hidden_size")
            if not isinstance(heads, int) or not isinstance(hidden, int) or heads < 1:
                return None
            kv_heads = part.get("num_key_value_heads") or heads
            width = part.get("head_dim") or hidden // heads
            if not isinstance(kv_heads, int) or not isinstance(width, int):
                return None
            return 2 * layers * max(1, kv_heads // tensor_parallel) * width * kv_bytes
    return None


def smallest_gpu() -> tuple[int | None, str]:
    """Total memory of the smallest GPU of this machine, bytes; None with the reason when it cannot be read."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        totals = [int(line) << 20 for line in done.stdout.split() if line.isdigit()]
    except FileNotFoundError:
        return None, "not readable here (no nvidia-smi)"
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"not readable here ({type(error).__name__})"
    return (min(totals), "") if totals else (None, "not readable here (nvidia-smi names no GPU)")


def _weights(checkpoint: Checkpoint | None, tensor_parallel: int) -> int | None:
    if checkpoint is None or not checkpoint.tensors:
        return None
    whole = shared = 0
    for name, tensor in checkpoint.tensors.items():
        # engines serve a 32-bit checkpoint in 16 bits unless told otherwise (--dtype)
        size = prod(tensor.shape) * 2 if tensor.dtype in ("F32", "F64") else tensor.num_bytes
        # every rank holds fc, norms and vocabulary maps whole
        if name.endswith(_WHOLE):
            whole += size
        else:
            shared += size
    return whole + shared // tensor_parallel


def _gib(value: int | None) -> str:
    return "unknown" if value is None else f"{value / GIB:.2f} GiB"


def _kib(value: int | None) -> str:
    return "unknown" if value is None else f"{value / 1024:.2f} KiB"
