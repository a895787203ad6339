"""Training speed and memory on one GPU, ours and our peers', with random weights made on the device: no folder needed.

python benchmarks/train_h200.py ours --shape llama8b --seq 2048 --tokens-per-step 8192 --out train.json
python benchmarks/train_h200.py ours-from-states speculators specforge --shape llama8b --seq 2048 --out peers.json

Modes (several run one after the other, each in a process of its own; what one yields is kept if the next fails):
  check             every fused kernel beside its plain twin, a whole step beside transformers + modules in fp32
  ours              target forward included; phases by CUDA events; --profile lists kernels
  ours-from-states  the same step, the target's states given in memory
  speculators       speculators' Eagle3DraftModel, its fused loss, torch AdamW, from the same states in memory
  specforge         SpecForge's OnlineEagle3Model with flex attention, from the same states in memory
  table             the records of --out as a table, to stdout
The peers' packages must be importable (pure Python wheels, on PYTHONPATH). Same shapes, K, rows, trained head and kl
loss for all; half of each row is supervised. --tiny --device cpu tries everything in seconds (peers: Triton
installed and TRITON_INTERPRET=1).
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import torch

PEAK_TFLOPS = 989.4  # H200, dense bf16, data sheet
MODES = ("check", "ours", "ours-from-states", "speculators", "specforge", "table")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a target and of the draft for it."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    draft_vocab: int
    tied: bool
    theta: float

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def boundaries(self) -> tuple[int, ...]:
        return (2, self.layers // 2, self.layers - 3)


SHAPES = {
    "llama8b": Shape(
        hidden=4096, layers=32, heads=32, kv_heads=8, intermediate=14336, vocab=128256, draft_vocab=32000, tied=False,
        theta=500000.0,
    ),
    "smollm2": Shape(
        hidden=576, layers=30, heads=9, kv_heads=3, intermediate=1536, vocab=49152, draft_vocab=8192, tied=True,
        theta=100000.0,
    ),
}  # fmt: skip
TINY = Shape(
    hidden=32, layers=6, heads=4, kv_heads=2, intermediate=48, vocab=96, draft_vocab=40, tied=False, theta=10000.0
)


def main() -> None:
    args = parsed()
    if len(args.modes) > 1:
        run_each_alone(args)
        return
    (mode,) = args.modes
    if mode == "table":
        print(table([json.loads(line) for line in args.out.read_text().splitlines()]))
        return
    say(f"{mode}: {args.shape} seq {args.seq} tokens/step {args.tokens_per_step} micro {args.micro} on {args.device}")
    found = {
        "check": check,
        "ours": ours,
        "ours-from-states": ours_from_states,
        "speculators": speculators,
        "specforge": specforge,
    }[mode](args)
    keep(args, {"mode": mode, "shape": args.shape, "seq": args.seq, **found})


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modes", nargs="+", choices=MODES)
    parser.add_argument("--shape", choices=list(SHAPES), default="llama8b")
    parser.add_argument("--seq", type=int, default=2048, help="tokens of each row")
    parser.add_argument("--tokens-per-step", type=int, default=8192)
    parser.add_argument("--micro", type=int, default=0, help="tokens of a micro-batch; 0 = the whole step")
    parser.add_argument("--ttt-steps", type=int, default=7)
    parser.add_argument("--draft-vocab", type=int, default=0, help="0 = of the shape")
    parser.add_argument("--loss", default="kl", choices=["kl", "ce", "tv", "lk"])
    parser.add_argument("--steps", type=int, default=8, help="timed optimiser steps")
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--profile", action="store_true", help="top 25 kernels of one more step")
    parser.add_argument("--no-compile", action="store_true", help="peers without torch.compile")
    parser.add_argument("--most-seconds", type=float, default=240.0, help="of each of several modes")
    parser.add_argument("--out", type=Path, default=None, help="JSON lines; appended to")
    args = parser.parse_args()
    if args.tiny:
        args.seq, args.tokens_per_step, args.steps, args.warm_up = 24, 72, 2, 1
    args.micro = args.micro or args.tokens_per_step
    return args


def run_each_alone(args: argparse.Namespace) -> None:
    """A process a mode: memory peaks do not mix, and one that fails costs itself alone."""
    rest = [arg for arg in sys.argv[1:] if arg not in MODES]
    for mode in args.modes:
        try:
            done = subprocess.run([sys.executable, __file__, mode, *rest], check=False, timeout=args.most_seconds)
            failed: object = done.returncode
        except subprocess.TimeoutExpired:
            failed = f"not done after {args.most_seconds} s"
        if failed:
            keep(args, {"mode": mode, "failed": failed})


def keep(args: argparse.Namespace, record: dict[str, Any]) -> None:
    record = {**record, "machine": machine(args.device), "argv": sys.argv[1:]}
    print(json.dumps(record), flush=True)
    if args.out is not None:
        with args.out.open("a") as file:
            file.write(json.dumps(record) + "\n")


def table(records: list[dict[str, Any]]) -> str:
    """Markdown: one row a record that measured something, then those that failed."""
    lines = [
        "| step | shape | sequence | tokens/step | tokens/s | median (min - max) | TFLOP/s | MFU | peak allocated |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for found in records:
        if "tokens_per_s" not in found:
            continue
        steps = [s * 1e3 for s in found["step_s"]]
        lines.append(
            f"| {found['mode']} | {found['shape']} | {found['seq']} | {found['tokens_per_step']}"
            f" | {found['tokens_per_s']:,.0f} | {steps[len(steps) // 2]:.1f} ms ({steps[0]:.1f} - {steps[-1]:.1f})"
            f" | {found['tflops']:.0f} | {found['mfu']:.1%} | {found.get('peak_allocated_gb', 0.0):.1f} GB |"
        )
    for found in records:
        if phases := found.get("phases_s_per_step"):
            spent = ", ".join(f"{name} {s * 1e3:.1f}" for name, s in phases.items())
            lines.append(f"\n{found['mode']}, {found['shape']}, {found['seq']}: {spent} ms a step.")
    lines += [f"\n{found['mode']} failed: {found['failed']}." for found in records if "failed" in found]
    return "\n".join(lines)


def machine(device: str) -> dict[str, Any]:
    import transformers

    about = {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}
    if device.startswith("cuda"):
        about["gpu"] = torch.cuda.get_device_name()
    return about


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def shape_of(args: argparse.Namespace) -> Shape:
    shape = TINY if args.tiny else SHAPES[args.shape]
    return replace(shape, draft_vocab=args.draft_vocab) if args.draft_vocab else shape


def dtype_of(args: argparse.Namespace) -> torch.dtype:
    return torch.float32 if args.device == "cpu" else torch.bfloat16


# ---- models and rows


def llama_config(shape: Shape, longest: int) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocab,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=max(longest, 8192),
        rope_parameters={"rope_type": "default", "rope_theta": shape.theta},
        rms_norm_eps=1e-5,
    )


def make_target(args: argparse.Namespace) -> Any:
    from transformers import AutoModelForCausalLM

    from eyas.models.target import Target

    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype_of(args))
    try:
        with torch.device(args.device):
            model = AutoModelForCausalLM.from_config(llama_config(shape_of(args), args.seq), dtype=dtype_of(args))
    finally:
        torch.set_default_dtype(before)
    return Target(model)


def make_draft(args: argparse.Namespace, target: Any) -> Any:
    from eyas.contract.spec.draft_spec import DraftSpec, Rope
    from eyas.models.draft import Eagle3Draft
    from eyas.train.preflight.starting_draft import initialise

    shape = shape_of(args)
    spec = DraftSpec(
        hidden_size=shape.hidden,
        target_hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab,
        draft_vocab_size=shape.draft_vocab,
        rms_norm_eps=1e-5,
        rope=Rope(theta=shape.theta),
        max_position_embeddings=max(args.seq, 8192),
        aux_boundaries=shape.boundaries,
        trained_length=args.seq,
    )
    with torch.device(args.device):
        draft = Eagle3Draft(spec, target_embedding=target.parts.embedding, target_head=target.parts.head)
    draft.set_vocab_map(offered_ids(shape, args.device))
    initialise(draft, target.frozen, 0)
    return draft.train()


def offered_ids(shape: Shape, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randperm(shape.vocab, generator=generator)[: shape.draft_vocab].sort().values.to(device)


def make_rows(args: argparse.Namespace, seed: int) -> list[Any]:
    """Random rows; the second half of each is supervised."""
    from eyas.data.text.tokenise import TokenRow

    shape, generator = shape_of(args), torch.Generator().manual_seed(seed)
    num = max(1, args.tokens_per_step // args.seq)
    flags = tuple(i >= args.seq // 2 for i in range(args.seq))
    ids = torch.randint(0, shape.vocab, (num, args.seq), generator=generator).tolist()
    return [TokenRow(tuple(row), flags) for row in ids]


def flop_per_token(shape: Shape, args: argparse.Namespace, *, with_target: bool) -> dict[str, float]:
    """GFLOP a packed position, of the function (not of what is skipped or done twice); half of them supervised."""
    heads = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    mlp = 3 * shape.hidden * shape.intermediate
    block = shape.hidden * heads + shape.heads * shape.head_dim * shape.hidden + mlp
    causal = 2 * args.seq * shape.heads * shape.head_dim  # scores and mix over half of the square
    layer = 2 * shape.hidden * heads + shape.heads * shape.head_dim * shape.hidden + mlp
    parts = {
        "target": shape.layers * (2 * block + causal) if with_target else 0,
        "teacher": 0.5 * 2 * shape.vocab * shape.hidden,
        "draft layer": args.ttt_steps * (3 * 2 * layer + 3.5 * causal),
        "draft head": args.ttt_steps * 0.5 * 3 * 2 * shape.draft_vocab * shape.hidden,
        "fuse": 2 * 2 * 3 * shape.hidden * shape.hidden,
    }
    return {name: value / 1e9 for name, value in parts.items()}


# ---- timing


class Phases:
    """CUDA events around the trainer's phases; on the CPU the clock."""

    def __init__(self, device: str) -> None:
        self._is_cuda, self._spans, self.is_on = device.startswith("cuda"), [], False

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        begin = self._mark()
        yield
        if self.is_on:
            self._spans.append((phase, begin, self._mark()))

    def _mark(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self) -> dict[str, float]:
        totals: dict[str, float] = {}
        for phase, begin, end in self._spans:
            spent = begin.elapsed_time(end) / 1e3 if self._is_cuda else end - begin
            totals[phase] = totals.get(phase, 0.0) + spent
        return totals


def timed(args: argparse.Namespace, step: Callable[[int], object], num_tokens: int, phases: Phases) -> dict[str, Any]:
    """Warm up, then run steps without waiting in between; tokens/s over all, spread over single steps by events."""
    is_cuda = args.device.startswith("cuda")

    def sync() -> None:
        if is_cuda:
            torch.cuda.synchronize()

    for i in range(args.warm_up):
        start = time.perf_counter()
        step(i)
        sync()
        say(f"warm-up step {i + 1}: {time.perf_counter() - start:.2f} s")
    phases.is_on = True
    marks = [phases._mark()]
    start = time.perf_counter()
    for i in range(args.steps):
        step(args.warm_up + i)
        marks.append(phases._mark())
    sent = time.perf_counter() - start
    sync()
    spent = time.perf_counter() - start
    single = [(a.elapsed_time(b) / 1e3 if is_cuda else b - a) for a, b in pairwise(marks)]
    found: dict[str, Any] = {
        "tokens_per_s": num_tokens * args.steps / spent,
        "step_s": sorted(single),
        "host_s_per_step": sent / args.steps,
        "phases_s_per_step": {name: s / args.steps for name, s in phases.seconds().items()},
        "tokens_per_step": num_tokens,
    }
    if is_cuda:
        found["peak_allocated_gb"] = torch.cuda.max_memory_allocated() / 1e9
        found["peak_reserved_gb"] = torch.cuda.max_memory_reserved() / 1e9
    say(json.dumps({k: found[k] for k in found if k != "step_s"}))
    if args.profile:
        profile(args, step)
    return found


def profile(args: argparse.Namespace, step: Callable[[int], object]) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    is_cuda = args.device.startswith("cuda")
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    with profiled(activities=kinds) as found:
        step(10_000)
        if is_cuda:
            torch.cuda.synchronize()
    order = "self_cuda_time_total" if is_cuda else "self_cpu_time_total"
    say("\n" + found.key_averages().table(sort_by=order, row_limit=25, max_name_column_width=60))


def with_mfu(found: dict[str, Any], flop: dict[str, float]) -> dict[str, Any]:
    total = sum(flop.values())
    tflops = found["tokens_per_s"] * total / 1e3
    return {**found, "gflop_per_token": flop | {"all": total}, "tflops": tflops, "mfu": tflops / PEAK_TFLOPS}


# ---- ours


def make_trainer(args: argparse.Namespace, phases: Phases) -> Any:
    from eyas.train.config import TrainConfig
    from eyas.train.optimise.teaching import Teaching
    from eyas.train.optimise.trainer import Trainer

    target = make_target(args)
    say("target made")
    draft = make_draft(args, target)
    config = TrainConfig(ttt_steps=args.ttt_steps, loss=args.loss, micro_batch_tokens=args.micro)
    trainer = Trainer(draft, Teaching.live(target, config), config, lr=1e-4, num_steps=1000, clock=phases)
    say("trainer made")
    return trainer


def ours(args: argparse.Namespace) -> dict[str, Any]:
    phases = Phases(args.device)
    trainer = make_trainer(args, phases)
    batches = [make_rows(args, seed) for seed in range(4)]
    pending: list[Any] = []

    def step(i: int) -> None:
        pending.append(trainer.start_step(batches[i % 4], min(i, 900)))

    num_tokens = sum(len(row.token_ids) for row in batches[0])
    found = timed(args, step, num_tokens, phases)
    found["losses"] = losses_of(pending)
    return with_mfu(found, flop_per_token(shape_of(args), args, with_target=True))


def ours_from_states(args: argparse.Namespace) -> dict[str, Any]:
    """The same trainer; its target forward gives states that are there already."""
    from eyas.train.rows.packing import micro_batches, pack

    phases = Phases(args.device)
    trainer = make_trainer(args, phases)
    rows = make_rows(args, 0)
    parts = micro_batches(rows, args.micro)
    device = torch.device(args.device)
    teaching = trainer.teaching
    given = [teaching.states(pack(part, args.ttt_steps, device), trainer._aux_boundaries) for part in parts]
    turn = cycle(given)
    drop_layers(teaching.plain)
    trainer.teaching = replace(
        teaching, states=lambda packed, boundaries: next(turn), plain=None, held_out=None, own_logits=None
    )
    pending: list[Any] = []
    num_tokens = sum(len(row.token_ids) for row in rows)
    found = timed(args, lambda i: pending.append(trainer.start_step(rows, min(i, 900))), num_tokens, phases)
    found["losses"] = losses_of(pending)
    return with_mfu(found, flop_per_token(shape_of(args), args, with_target=False))


def drop_layers(live: Any) -> None:
    """The states are there: the target's layers go, so that memory is that of the draft's training, as for peers."""
    import gc

    model = live._target.model.model
    model.layers = torch.nn.ModuleList()
    live._target.parts = replace(live._target.parts, layers=model.layers)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def losses_of(pending: list[Any]) -> list[float]:
    from eyas.train.optimise.step_outcome import read_steps

    outcomes, error = read_steps(pending)
    if error is not None:
        raise error
    return [outcome.loss for outcome in outcomes]


def check(args: argparse.Namespace) -> dict[str, Any]:
    """Relative gaps between the fast step on this device and the same step in fp32 through transformers and modules."""
    from eyas.train.rows.packing import pack
    from eyas.train.step.unroll import FusedUnroll, ModuleUnroll

    args.seq, args.tokens_per_step, args.micro = (24, 72, 72) if args.tiny else (300, 900, 900)
    args.ttt_steps = 3
    phases = Phases(args.device)
    trainer = make_trainer(args, phases)
    rows = [*make_rows(args, 0), *(type(r)(r.token_ids[:17], r.is_supervised[-17:]) for r in make_rows(args, 1)[:1])]
    packed = pack(rows, args.ttt_steps, torch.device(args.device))
    real, found = packed.num_tokens, {}
    fast, slow = (
        source(packed, trainer._aux_boundaries) for source in (trainer.teaching.states, trainer.teaching.plain)
    )
    found["target aux"] = gap(fast.aux[:real], slow.aux[:real])
    found["target last"] = gap(fast.last[:real], slow.last[:real])
    draft, target_parts = trainer.draft, packed.is_target.unsqueeze(-1)
    unrolls = {
        "fused": FusedUnroll(draft, args.ttt_steps, dtype_of(args)),
        "modules": ModuleUnroll(draft, args.ttt_steps, torch.float32),
    }
    results = {}
    for name, unroll in unrolls.items():
        draft.zero_grad()
        states = unroll.states(packed, fast.aux.to(torch.float32) if name == "modules" else fast.aux)
        weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(3)).to(states)
        states.backward(weights * target_parts)
        unroll.publish()
        grads = {n: p.grad.float().clone() for n, p in draft.named_parameters() if p.grad is not None}
        results[name] = (states.detach().float() * target_parts, grads)
    found["draft states"] = gap(results["fused"][0], results["modules"][0])
    for name, exact in results["modules"][1].items():
        found[f"grad {name}"] = gap(results["fused"][1][name], exact)
    draft.zero_grad()
    losses = losses_of([trainer.start_step(rows, step) for step in range(6)])
    found["losses"] = losses
    for name, value in found.items():
        say(f"{name}: {value}")
    return {"relative_gaps": found}


def gap(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Norm of the difference over the norm."""
    return float((got.float() - wanted.float()).norm() / wanted.float().norm().clamp(min=1e-12))


def peer(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """A peer's step from states in memory."""
    import train_h200_peers as peers

    make = {"speculators": peers.speculators_step, "specforge": peers.specforge_step}[name]
    step, num_tokens = make(args, shape_of(args), offered_ids(shape_of(args), args.device), dtype_of(args))
    say(f"{name} made")
    losses: list[torch.Tensor] = []
    found = timed(args, lambda i: losses.append(step(i)), num_tokens, Phases(args.device))
    found["losses"] = [float(loss) for loss in losses]
    return with_mfu(found, flop_per_token(shape_of(args), args, with_target=False))


def speculators(args: argparse.Namespace) -> dict[str, Any]:
    return peer(args, "speculators")


def specforge(args: argparse.Namespace) -> dict[str, Any]:
    return peer(args, "specforge")


if __name__ == "__main__":
    main()
