"""What a run will cost, from shapes alone: memory by its largest tensors, disk, arithmetic."""

from dataclasses import dataclass

from eyas.contract.draft_spec import DraftSpec
from eyas.train.config import TrainConfig

_ADAM_BYTES = 16  # fp32 weight, gradient and two moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """An estimate.

    Attributes:
        memory_bytes: what -> bytes, largest first; all of it exists at once at the peak.
        checkpoint_bytes, draft_bytes: on disk, during the run and after it.
        flop_per_token: forward of the target, teacher, unrolled draft forward and backward.
        num_trained: trained parameters.
    """

    memory_bytes: dict[str, int]
    checkpoint_bytes: int
    draft_bytes: int
    flop_per_token: int
    num_trained: int

    @property
    def peak_bytes(self) -> int:
        """Sum of `memory_bytes`."""
        return sum(self.memory_bytes.values())


def estimate_costs(
    spec: DraftSpec, config: TrainConfig, *, target_params: int, target_bytes: int, longest: int
) -> Costs:
    """Estimate for a draft of shape `spec`.

    Args:
        target_params: of the target, embedding included.
        target_bytes: of its weights in memory.
        longest: longest row, tokens: a longer row than a micro-batch goes alone.
    """
    width, wide, vocab = spec.hidden_size, spec.intermediate_size, spec.draft_vocab_size
    heads = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    layer = 2 * width * heads + spec.num_heads * spec.head_dim * width + 3 * width * wide
    fuse, head = spec.num_aux * spec.target_hidden_size * width, vocab * width
    trained = layer + fuse + head
    tokens = max(config.micro_batch_tokens, longest)
    # Of each unrolled position: norms, q, k, v, attention output, MLP: what autograd keeps, fp32.
    kept = 4 * (8 * width + 2 * heads + 4 * wide)
    memory = {
        "target weights": target_bytes,
        "draft weights, gradients and optimiser (fp32)": _ADAM_BYTES * trained,
        f"draft activations of {config.ttt_steps} steps x {tokens} tokens": config.ttt_steps * tokens * kept,
        "teacher over the draft vocabulary (fp32)": 4 * tokens * vocab,
        "states of the target (aux and last)": 4 * tokens * (spec.num_aux + 1) * spec.target_hidden_size,
        "target activations of one layer": 4 * tokens * 12 * spec.target_hidden_size,
    }
    teacher = 2 * spec.vocab_size * spec.target_hidden_size
    embedding = spec.vocab_size * spec.target_hidden_size
    flop = 2 * (target_params - embedding) + teacher + 6 * fuse + 6 * config.ttt_steps * (layer + head)
    return Costs(
        memory_bytes=dict(sorted(memory.items(), key=lambda item: -item[1])),
        checkpoint_bytes=12 * trained,
        draft_bytes=2 * trained,
        flop_per_token=flop,
        num_trained=trained,
    )
