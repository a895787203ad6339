"""What a run will cost, from shapes alone: memory by its largest tensors, disk, arithmetic."""

from dataclasses import dataclass

from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.target_size import TargetSize
from eyas.train.config import TrainConfig

_MOST_LOGITS = 1 << 27  # `head_loss` on a GPU, of the target and of the draft
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSize:
    """Parameters of a draft by part; what it shares with the target is not counted."""

    layers: int
    fuse: int
    head: int
    embedding: int
    norms: int

    @property
    def total(self) -> int:
        """All of its own."""
        return self.layers + self.fuse + self.head + self.embedding + self.norms


def draft_size(spec: DraftSpec) -> DraftSize:
    """Counted on the module itself, built without memory."""
    import torch

    from eyas.models.draft import Eagle3Draft

    with torch.device("meta"):
        draft = Eagle3Draft(spec)
    parts = {"layers": 0, "fc": 0, "lm_head": 0, "embed_tokens": 0}
    total = 0
    for name, parameter in draft.named_parameters():
        total += parameter.numel()
        part = name.split(".")[0]
        if part in parts:
            parts[part] += parameter.numel()
    layers, fuse, head, embedding = parts.values()
    norms = total - sum(parts.values())
    return DraftSize(layers=layers, fuse=fuse, head=head, embedding=embedding, norms=norms)


def estimate_costs(
    spec: DraftSpec,
    config: TrainConfig,
    *,
    target: TargetSize,
    longest: int,
    batch_tokens: int | None = None,
    supervised: float = 1.0,
    device_type: str = "cpu",
    process_bytes: int = 0,
) -> Costs:
    """Estimate for a draft of shape `spec`.

    Args:
        target: size of the target.
        longest: longest row, tokens: a longer row than a micro-batch goes alone.
        batch_tokens: of an optimiser step, which a micro-batch does not exceed; None where it is not known.
        supervised: share of the tokens: the others go through no head.
        device_type: "cpu" or "cuda": the size of a micro-batch, and what lies in the same memory. On a CPU the target
            computes in fp32, and its file stays mapped beside the weights that are made of it.
        process_bytes: resident before anything is loaded.
    """
    width, wide, vocab = spec.hidden_size, spec.intermediate_size, spec.draft_vocab_size
    heads = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    size = draft_size(spec)
    frozen = (size.head if config.freeze_head else 0) + (size.embedding if config.freeze_embedding else 0)
    trained = size.total - frozen
    at_once = config.micro_batch_on(device_type)
    tokens = max(at_once if batch_tokens is None else min(at_once, batch_tokens), longest)
    # What autograd keeps of each unrolled position: five states, q, k, v, attention's output, gate and up; in fp32
    # (half of it beside a target in bf16).
    kept = 4 * (5 * width + 2 * heads + 2 * wide) * spec.num_layers
    memory = {
        "target weights": target.num_bytes,
        "draft weights, gradients and optimiser (fp32)": _ADAM_BYTES * trained + 4 * frozen,
        f"draft activations of {config.ttt_steps} steps x {tokens} tokens": config.ttt_steps * tokens * kept,
        "logits of target and draft, some positions at a time": 8
        * min(_MOST_LOGITS, config.ttt_steps * tokens * vocab),
        "states of the target (aux and last)": 4 * tokens * (spec.num_aux + 1) * spec.target_hidden_size,
        "target activations of one layer": 4 * tokens * 12 * spec.target_hidden_size,
    }
    if device_type == "cpu":
        memory["target weights"] = max(target.num_bytes, 4 * target.num_params)
        memory["target's file, mapped while it is read"] = target.num_bytes
        memory["this process so far (python, torch)"] = process_bytes
    teacher = 2 * spec.vocab_size * spec.target_hidden_size
    head = size.head or vocab * width
    heads_flop = teacher + 6 * config.ttt_steps * head
    flop = 2 * target.num_active + 6 * size.fuse + 6 * config.ttt_steps * size.layers + round(supervised * heads_flop)
    return Costs(
        memory_bytes=dict(sorted(memory.items(), key=lambda item: -item[1])),
        checkpoint_bytes=12 * trained + 4 * frozen + 2 * size.total,  # masters and moments, the best draft in bf16
        draft_bytes=2 * size.total,
        flop_per_token=flop,
        num_trained=trained,
    )
