"""The options of `eyas train`, and the numbers they resolve to: a second object, the first is never changed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, log2
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from eyas.decode.accept_length import DEFAULT_DRAFT_TOKENS
from eyas.errors import EyasError

LossName = Literal["kl", "ce", "tv", "lk", "jeffreys"]

# Sections of `eyas train --help`, in this order, after the required options.
STATES = Group("The target's states", sort_key=0)
AMOUNT = Group("How much", sort_key=1)
DRAFT = Group("The draft", sort_key=2)
OPTIMISATION = Group("Optimisation", sort_key=3)
CHECKS = Group("Checks", sort_key=4)
MACHINE = Group("Machine", sort_key=5)
OUTPUT = Group("Output", sort_key=6)

# At the width of SmolLM2-135M; a wider draft takes proportionally smaller steps.
_LR_OF = {"adamw": 1e-3, "muon": 2e-3}
_LR_WIDTH = 576
MAX_STEPS = 1_000_000  # every step of a run is laid out in memory before the first
_MAX_SEED = 2**32 - 1  # `batch_plan` and torch make a 64-bit number of it
_MAX_THREADS = 1024
_TRAINED_SHARE = 0.2  # of the learning rate of a new draft
_DRAFT_VOCAB_SIZE = 8192
_MICRO_BATCH_TOKENS = {"cpu": 4096, "cuda": 16384}
_MAX_PROCESSES = 64
NUM_BOUNDARIES = 3
_MAX_LAYERS = 8  # of a draft
_MAX_WIDTH = 1 << 20  # of its MLP
_MAX_COUNT = 10**15  # tokens: of a run, a step or a micro-batch


class TrainConfigInvalid(EyasError):
    """Options of training that are out of range or exclude each other; all problems at once."""

    code = "train-config-invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftShape:
    """Options of a new draft (`--init-from` keeps that draft's own); `eyas check` says how an engine reads them."""

    num_layers: int = 1
    """Decoder layers, 1 … 8; only the first reads the target's states."""
    attention: Literal["gqa", "mla"] = "gqa"
    """gqa: grouped queries. mla: latent attention, with the sizes of a DeepSeek or Kimi target."""
    intermediate_size: int | None = None
    """Width of the MLP; by default the target's, or 4 x hidden where that is the width of one expert."""
    feedback: Literal["pre-norm", "post-norm"] = "pre-norm"
    """State fed to the next step: before (EAGLE-3) or after the final norm (EAGLE 3.1, `norm_output`)."""
    aux_norm: Literal["none", "per-state", "over-concat"] = "none"
    """Norm of the target's states before fc: none, one each (EAGLE 3.1, `fc_norm`), or one over all
    (`norm_before_fc`)."""
    residual: Literal["pre-norm", "post-norm"] = "pre-norm"
    """Residual of the first layer: the fused state before or after its norm (`norm_before_residual`)."""
    qk_norm: Annotated[bool, Parameter(negative="")] = False
    """Norms of queries and keys, as in Qwen3."""
    embedding: Literal["target", "own"] = "target"
    """target: the target's, not trained. own: a copy of it that is trained; SGLang would overwrite it."""

    def problems(self) -> list[str]:
        """What is out of range or excludes each other."""
        width = self.intermediate_size
        wanted = [
            (1 <= self.num_layers <= _MAX_LAYERS, _unwanted("num_layers", self.num_layers, f"1 … {_MAX_LAYERS}")),
            (width is None or 1 <= width <= _MAX_WIDTH, _unwanted("intermediate_size", width, f"1 … {_MAX_WIDTH}")),
            (not self.qk_norm or self.attention == "gqa", f"--qk-norm beside --attention {self.attention}: only gqa"),
        ]
        return [text for is_fine, text in wanted if not is_fine]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How a draft is trained."""

    steps: Annotated[int | None, Parameter(group=AMOUNT)] = None
    """Optimiser steps, 1 … 1000000; excludes --tokens and --epochs."""
    tokens: Annotated[int | None, Parameter(group=AMOUNT)] = None
    """Training tokens, prompts included, over as many passes as needed; excludes --steps and --epochs."""
    epochs: Annotated[int, Parameter(group=AMOUNT)] = 1
    """Passes over the rows, when neither --steps nor --tokens is given."""
    batch_tokens: Annotated[int | None, Parameter(group=OPTIMISATION)] = None
    """Tokens per optimiser step, at least one row; by default 2048 with --steps, else about 1.5 √(tokens of the run),
    a power of two, 256 … 32768."""
    batch_ramp: Annotated[float, Parameter(group=OPTIMISATION)] = 1.0
    """Size of the first step as a share of --batch-tokens, above 0; it grows to 1 over the first half of the run."""
    micro_batch_tokens: Annotated[int | None, Parameter(group=OPTIMISATION)] = None
    """Tokens that go through the models at once, at least one row; a larger step accumulates gradients over several. By
    default 4096 on a CPU and 16384 on a GPU."""
    ttt_steps: Annotated[int, Parameter(group=OPTIMISATION)] = 7
    """Unrolled steps of training-time test, 1 … 16."""
    loss: Annotated[LossName, Parameter(group=OPTIMISATION)] = "kl"
    """kl: KL divergence (EAGLE-3). ce: cross-entropy with the target's argmax. tv: 1 - sampled acceptance. lk: moves
    from kl to tv as the draft gets better. jeffreys: mean of both KL divergences."""
    teacher_temperature: Annotated[float, Parameter(group=OPTIMISATION)] = 1.0
    """The target's logits are divided by it before they are learned from: below 1, its first choice counts for more."""
    unroll: Annotated[Literal["fused", "eager", "modules"], Parameter(group=OPTIMISATION)] = "fused"
    """fused: target, draft and loss by eyas' fused arithmetic where it covers them, on a GPU with CUDA graphs where
    launching would take longer than computing. eager: the same without graphs. modules: the plain modules, slower, on
    any device; for a draft or a loss that you have changed."""
    step_decay: Annotated[float, Parameter(group=OPTIMISATION)] = 0.8
    """Weight of step j's loss is step_decay to the power j, in (0, 1]."""
    feedback_dropout: Annotated[float, Parameter(group=OPTIMISATION)] = 0.0
    """Share of the positions at which the state fed from one unrolled step to the next is dropped, 0 … below 1."""
    optimiser: Annotated[Literal["adamw", "muon"], Parameter(group=OPTIMISATION)] = "muon"
    """muon for the matrices between states, with adamw for head, embedding and norms; or adamw for all."""
    lr: Annotated[float | None, Parameter(group=OPTIMISATION)] = None
    """Peak learning rate; by default 2e-3 at width 576 (adamw: 1e-3), falling with 1 / width; a fifth with
    --init-from."""
    warmup_share: Annotated[float, Parameter(group=OPTIMISATION)] = 0.05
    """Share of the steps over which the learning rate rises linearly, 0 … 1."""
    schedule: Annotated[Literal["cosine", "linear", "constant", "wsd"], Parameter(group=OPTIMISATION)] = "wsd"
    """Shape of the learning rate after the warm-up; wsd: constant, then linear over the last --decay-share."""
    decay_share: Annotated[float, Parameter(group=OPTIMISATION)] = 0.2
    """Share of the steps, the last ones, over which wsd lowers the learning rate, 0 … 1."""
    final_lr_share: Annotated[float, Parameter(group=OPTIMISATION)] = 0.0
    """Learning rate at the end, as a share of its peak, 0 … 1."""
    average_share: Annotated[float, Parameter(group=OPTIMISATION)] = 0.0
    """The draft that is replayed and written has weights averaged over about this share of the steps; 0: the last
    step's."""
    weight_decay: Annotated[float, Parameter(group=OPTIMISATION)] = 0.0
    """Decoupled weight decay of matrices; norms have none."""
    grad_clip: Annotated[float, Parameter(group=OPTIMISATION)] = 0.5
    """Gradient clipping: the largest global norm."""
    draft_vocab_size: Annotated[int | Literal["full"] | None, Parameter(group=DRAFT)] = None
    """Size of the draft vocabulary: the most frequent supervised tokens; full or 0 is the target's whole vocabulary. By
    default 8192, or all of a target that has fewer."""
    aux_boundaries: Annotated[tuple[int, ...] | None, Parameter(group=DRAFT, consume_multiple=True, negative="")] = None
    """Decoder layers applied before each of the three tapped states, low to high; default: 2, N/2, N-3 as in SGLang
    and vLLM."""
    shape: Annotated[DraftShape, Parameter(group=DRAFT, name="*")] = field(default_factory=DraftShape)
    """Shape of a new draft."""
    init_layer: Annotated[int | None, Parameter(group=DRAFT)] = None
    """Start the draft's layers from this decoder layer of the target, counted from 0; default: random weights."""
    freeze_head: Annotated[bool, Parameter(group=DRAFT, negative="")] = False
    """Keep the head as it was initialised."""
    freeze_embedding: Annotated[bool, Parameter(group=DRAFT, negative="")] = False
    """Keep the draft's own embedding as it is; the target's is never trained."""
    eval_every: Annotated[int | None, Parameter(group=CHECKS)] = None
    """Optimiser steps between replays of the held-out rows, 0 = never; by default about ten replays a run."""
    held_out_rows: Annotated[int, Parameter(group=CHECKS)] = 64
    """Number of held-out rows that are replayed, from the start of the file, 1 … 100000."""
    held_out_draft_tokens: Annotated[int, Parameter(group=CHECKS)] = DEFAULT_DRAFT_TOKENS
    """Drafts per verify pass in these replays, 1 … 16."""
    keep: Annotated[Literal["best", "last"], Parameter(group=CHECKS)] = "best"
    """Which draft is written: the one with the largest accept length on the held-out rows, or the last."""
    log_every: Annotated[int | None, Parameter(group=OUTPUT)] = None
    """Steps between readings of loss and counts; eyas waits for the GPU only then. By default 10, on a CPU 1."""
    checkpoint_every_s: Annotated[float, Parameter(group=OUTPUT)] = 300.0
    """Seconds between checkpoints of the unfinished run (OUT.resume); 0 = none."""
    seed: Annotated[int, Parameter(group=OPTIMISATION)] = 0
    """Seed of initial weights and of the order of rows, 0 … 4294967295."""

    def __post_init__(self) -> None:
        problems = _problems(self)
        if problems:
            raise TrainConfigInvalid(
                "options of train are out of range", "options", "; ".join(problems), "see `eyas train --help`"
            )

    @property
    def offered(self) -> int:
        """Tokens of the draft vocabulary as asked for; 0 = all."""
        if self.draft_vocab_size is None:
            return _DRAFT_VOCAB_SIZE
        return 0 if self.draft_vocab_size == "full" else self.draft_vocab_size

    def offered_of(self, vocab_size: int) -> tuple[int, tuple[str, ...]]:
        """`offered` and its notes for a target of `vocab_size` tokens; only the default shrinks to a small target."""
        if self.draft_vocab_size is not None or vocab_size >= _DRAFT_VOCAB_SIZE:
            return self.offered, ()
        return 0, (
            f"draft vocabulary: all {vocab_size} tokens of the target, fewer than the usual {_DRAFT_VOCAB_SIZE}",
        )

    def micro_batch_on(self, device_type: str) -> int:
        """Tokens that go through the models at once on a "cpu" or "cuda" device."""
        return self.micro_batch_tokens or _MICRO_BATCH_TOKENS[device_type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The numbers that a `TrainConfig` leaves to the data and the draft's width.

    Attributes:
        batch_tokens: tokens per optimiser step.
        lr: peak learning rate.
        notes: what eyas chose, for `Talk.note`.
    """

    batch_tokens: int
    lr: float
    notes: tuple[str, ...]


def require_threads(threads: int | None) -> None:
    """Raise `TrainConfigInvalid` unless the number of CPU threads is None (torch chooses) or 1 … 1024."""
    if threads is not None and not 1 <= threads <= _MAX_THREADS:
        raise TrainConfigInvalid(
            "the number of threads is out of range",
            f"--threads {threads}",
            f"wanted 1 … {_MAX_THREADS}",
            "leave --threads out, or give at most the number of cores",
        )


def require_processes(gpus: int, *, under_torchrun: bool) -> None:
    """Raise `TrainConfigInvalid` for a number of GPUs out of range, or one beside torchrun."""
    if not 1 <= gpus <= _MAX_PROCESSES:
        raise TrainConfigInvalid(
            "the number of GPUs is out of range",
            f"--gpus {gpus}",
            f"wanted 1 … {_MAX_PROCESSES}",
            "give at most the number of GPUs that `nvidia-smi -L` lists",
        )
    if gpus > 1 and under_torchrun:
        raise TrainConfigInvalid(
            "two launchers at once",
            f"--gpus {gpus} under torchrun",
            "torchrun has started the processes already, and each of them would start more",
            "leave --gpus out: torchrun sets the number of processes",
        )


def resolve(config: TrainConfig, *, hidden_size: int, num_tokens: int, longest: int, is_new: bool = True) -> Resolved:
    """Fill what the user left open.

    Args:
        hidden_size: of the draft.
        num_tokens: in all rows together.
        longest: longest row, in tokens.
        is_new: the draft is not trained yet; one that is takes smaller steps.
    """
    notes, chosen = list[str](), list[str]()
    lr, batch_tokens = config.lr, config.batch_tokens
    total = config.tokens or num_tokens * config.epochs
    if lr is None:
        lr = _LR_OF[config.optimiser] * _LR_WIDTH / hidden_size * (1 if is_new else _TRAINED_SHARE)
        chosen.append(f"a peak learning rate of {lr:.3g} (--lr)")
    if batch_tokens is None:
        batch_tokens = 2048 if config.steps else batch_tokens_for(total)
        chosen.append(f"{batch_tokens} tokens a step (--batch-tokens)")
    if chosen:
        amount = f"{config.steps} steps" if config.steps else f"{total / 1e6:.3g} M tokens"
        of = f"{config.optimiser} and {'a new' if is_new else 'a trained'} draft of width {hidden_size}"
        notes.append(f"chosen for {amount}, {of}: {', '.join(chosen)}")
    if longest > batch_tokens:
        notes.append(
            f"rows of up to {longest} tokens exceed a batch of {batch_tokens}: each of them is a batch of its own"
        )
    return Resolved(batch_tokens=batch_tokens, lr=lr, notes=tuple(notes))


def batch_tokens_for(total: int) -> int:
    """Tokens per step for a run of `total` tokens: steps and their size both grow with √total.

    10 k tokens: 256 (40 steps); 2 M: 2048 (1000); 50 M: 8192 (6000); 1 G: 32768 (30 000). A fixed number of steps
    would give small runs too few updates, or make the steps of large runs too small. Half as many gave as much
    (benchmarks/learn_h200_202611.md) and take longer.
    """
    return int(min(32768, max(256, 2 ** round(log2(1.5 * max(1, total) ** 0.5)))))


def _problems(config: TrainConfig) -> list[str]:
    has_length = config.steps is not None or config.tokens is not None
    together = [
        (config.steps is None or config.tokens is None, "--steps and --tokens exclude each other"),
        (config.epochs == 1 or not has_length, "--epochs excludes --steps and --tokens"),
    ]
    ranges = [
        (config.steps is None or 1 <= config.steps <= MAX_STEPS, "steps", f"1 … {MAX_STEPS}"),
        (config.tokens is None or 1 <= config.tokens <= _MAX_COUNT, "tokens", f"1 … {_MAX_COUNT}"),
        (1 <= config.epochs <= _MAX_COUNT, "epochs", f"1 … {_MAX_COUNT}"),
        (config.batch_tokens is None or 1 <= config.batch_tokens <= _MAX_COUNT, "batch_tokens", f"1 … {_MAX_COUNT}"),
        (
            config.micro_batch_tokens is None or 1 <= config.micro_batch_tokens <= _MAX_COUNT,
            "micro_batch_tokens",
            f"1 … {_MAX_COUNT}",
        ),
        (1 <= config.ttt_steps <= 16, "ttt_steps", "1 … 16"),
        (0.0 < config.batch_ramp <= 1.0, "batch_ramp", "above 0, at most 1"),
        (0.01 <= config.teacher_temperature <= 100.0, "teacher_temperature", "0.01 … 100"),
        (0.0 <= config.feedback_dropout < 1.0, "feedback_dropout", "0 … below 1"),
        (0.0 <= config.decay_share <= 1.0, "decay_share", "0 … 1"),
        (0.0 <= config.average_share <= 1.0, "average_share", "0 … 1"),
        (config.init_layer is None or config.init_layer >= 0, "init_layer", "0 or more"),
        (0.0 < config.step_decay <= 1.0, "step_decay", "above 0, at most 1"),
        (config.lr is None or 0.0 < config.lr < inf, "lr", "above 0, finite"),
        (0.0 <= config.warmup_share <= 1.0, "warmup_share", "0 … 1"),
        (0.0 <= config.final_lr_share <= 1.0, "final_lr_share", "0 … 1"),
        (0.0 <= config.weight_decay < inf, "weight_decay", "0 or more, finite"),
        (0.0 < config.grad_clip < inf, "grad_clip", "above 0, finite"),
        (_is_of_three(config.aux_boundaries), "aux_boundaries", f"{NUM_BOUNDARIES} of them"),
        (_is_increasing(config.aux_boundaries), "aux_boundaries", "1 or more, increasing"),
        (config.eval_every is None or config.eval_every >= 0, "eval_every", "0 or more"),
        (1 <= config.held_out_rows <= 100_000, "held_out_rows", "1 … 100000"),
        (1 <= config.held_out_draft_tokens <= 16, "held_out_draft_tokens", "1 … 16"),
        (config.log_every is None or config.log_every >= 1, "log_every", "1 or more"),
        (0.0 <= config.checkpoint_every_s < inf, "checkpoint_every_s", "0 or more, finite"),
        (0 <= config.seed <= _MAX_SEED, "seed", f"0 … {_MAX_SEED}"),
        (config.offered == 0 or config.offered >= 8, "draft_vocab_size", "full, 0, or 8 or more"),
    ]
    return [
        *(text for is_fine, text in together if not is_fine),
        *(_unwanted(name, getattr(config, name), wanted) for is_fine, name, wanted in ranges if not is_fine),
        *config.shape.problems(),
    ]


def _is_of_three(boundaries: tuple[int, ...] | None) -> bool:
    return boundaries is None or len(boundaries) == NUM_BOUNDARIES


def _is_increasing(boundaries: tuple[int, ...] | None) -> bool:
    if boundaries is None:
        return True
    return all(n >= 1 for n in boundaries) and all(a < b for a, b in pairwise(boundaries))


def _unwanted(name: str, value: object, wanted: str) -> str:
    """For the field `name` of a config with this `value`: "--ttt-steps is 99, wanted 1 … 16"."""
    shown = " ".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value
    return f"--{name.replace('_', '-')} is {shown}, wanted {wanted}"
