"""What a run will cost, from shapes alone: memory of its largest tensors, disk, arithmetic."""

from collections import Counter
from dataclasses import dataclass

from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.target_size import TargetSize
from eyas.train.config import TrainConfig

_MOST_LOGITS = 1 << 27  # `head_loss` on a GPU, of the target and of the draft
_ADAM_BYTES = 16  # fp32 weight, gradient and two moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Estimated memory, disk and arithmetic.

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


def draft_size(spec: DraftSpec) -> Counter[str]:
    """Parameters of a draft by its top-level modules, without those of the target; counted on the meta device."""
    import torch

    from eyas.models.draft import Eagle3Draft

    with torch.device("meta"):
        draft = Eagle3Draft(spec)
    sizes = Counter[str]()
    for name, parameter in draft.named_parameters():
        sizes[name.split(".")[0]] += parameter.numel()
    return sizes


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
    ahead_bytes: int | None = None,
) -> Costs:
    """Estimate for a draft of shape `spec`.

    Args:
        target: size of the target.
        longest: longest row, tokens; a row longer than a micro-batch is a micro-batch of its own.
        batch_tokens: of an optimiser step, which a micro-batch does not exceed; None where it is not known.
        supervised: share of the tokens; the others do not go through the head.
        device_type: "cpu" or "cuda": decides the size of a micro-batch and what shares the memory. On a CPU the target
            computes in fp32, and its file stays mapped beside the fp32 weights.
        process_bytes: resident before anything is loaded.
        ahead_bytes: of states that come from elsewhere, fetched or waiting; None with the target in the process.
    """
    width, wide, vocab = spec.hidden_size, spec.intermediate_size, spec.draft_vocab_size
    heads = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    size = draft_size(spec)
    total = size.total()
    frozen = size["lm_head"] * config.freeze_head + size["embed_tokens"] * config.freeze_embedding
    trained = total - frozen
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
    }
    if ahead_bytes is None:
        memory["target activations of one layer"] = 4 * tokens * 12 * spec.target_hidden_size
    else:
        memory["states that are read ahead"] = ahead_bytes
    if device_type == "cpu":
        memory["target weights"] = max(target.num_bytes, 4 * target.num_params)
        if ahead_bytes is None:
            memory["target's file, mapped while it is read"] = target.num_bytes
        memory["this process so far (python, torch)"] = process_bytes
    teacher = 2 * spec.vocab_size * spec.target_hidden_size
    head = size["lm_head"] or vocab * width
    heads_flop = teacher + 6 * config.ttt_steps * head
    flop = (
        2 * target.num_active + 6 * size["fc"] + 6 * config.ttt_steps * size["layers"] + round(supervised * heads_flop)
    )
    return Costs(
        memory_bytes=dict(sorted(memory.items(), key=lambda item: -item[1])),
        checkpoint_bytes=12 * trained + 4 * frozen + 2 * total,  # masters and moments, the best draft in bf16
        draft_bytes=2 * total,
        flop_per_token=flop,
        num_trained=trained,
    )
