"""Throughput of batched plain generation: tokens per second over a whole run, prompts included.

    python benchmarks/batch_generation.py --target smollm2-135m --device cuda --dtype bfloat16 --batch 320 \
        [--temperature 1 --top-p 0.9] [--compare-eager] [--out OUT.json]

Also the time of one step with all slots in use, beside the least time that memory allows: all weights and the live part
of the cache read once. With --compare-eager the same requests through PyTorch's operators, not captured, with the share
of equal texts. Last line of stdout = one JSON object; partial results go to --out as they come.
"""

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from eyas.cli.target_option import target_folder
from eyas.cli.terminal import Terminal
from eyas.decode.sampling import Sampling
from eyas.engine.batches.batch_llama import bytes_per_position
from eyas.engine.batches.batch_plan import BatchPlan
from eyas.engine.batches.batch_runner import BatchRunner
from eyas.engine.batches.batch_state import NewRow
from eyas.engine.batches.complete_prompts import BatchSettings, plan_for, runner_for
from eyas.engine.batches.generator import BatchGenerator, Request
from eyas.engine.llama.llama_weights import LlamaWeights, read_llama
from eyas.models.placement import place
from eyas.talk import Silent


def requests(args: argparse.Namespace, num: int, vocab: int) -> list[Request]:
    """Random prompts of 20 - 200 tokens; answers of the full length, so that runs are comparable."""
    chance = random.Random(0)
    sampling = {"temperature": args.temperature, "top_k": args.top_k, "top_p": args.top_p}
    return [
        Request(
            id=str(i),
            prompt_ids=tuple(chance.randrange(vocab) for _ in range(chance.randint(20, 200))),
            max_new_tokens=args.new_tokens,
            sampling=Sampling(seed=i, **sampling),
        )
        for i in range(num)
    ]


def timed_run(runner: BatchRunner, asked: list[Request], max_prefill: int) -> tuple[float, dict[str, tuple[int, ...]]]:
    """Tokens per second, and the texts."""
    started = time.perf_counter()
    generator = BatchGenerator(runner, lambda ids: "", max_prefill_tokens=max_prefill)
    texts = {c.id: c.ids for c in generator.run(asked, Silent())}
    return sum(map(len, texts.values())) / (time.perf_counter() - started), texts


def step_ms(runner: BatchRunner, asked: list[Request], length: int, num: int) -> list[float]:
    """Milliseconds of single steps with every slot in use at about `length` positions."""
    state, slots = runner.state, runner.model.num_slots
    rows = [NewRow(row=i, length=length, sampling=asked[i % len(asked)].sampling, num_drawn=1) for i in range(slots)]
    state.join(rows)
    times, steps = [], runner.pace.steps
    for repeat in range(num + 1):
        before = time.perf_counter()
        runner.launch(slots, steps).steps()
        if repeat:  # the first one captures
            times.append(1000 * (time.perf_counter() - before) / steps)
    state.leave(range(slots))
    return times


def floor_ms(weights: LlamaWeights, slots: int, length: int, bandwidth: float) -> float:
    """Milliseconds to read all weights and the live cache once."""
    return 1000 * (weights.num_bytes + slots * length * bytes_per_position(weights)) / bandwidth


def agreement(left: dict[str, tuple[int, ...]], right: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """How many texts are equal; in bf16 they part at near-ties, where two sums differ in their order."""
    shared = [
        next((i for i, (a, b) in enumerate(zip(left[k], right[k], strict=True)) if a != b), len(left[k])) for k in left
    ]
    return {
        "texts": len(left),
        "equal": sum(n == len(text) for n, text in zip(shared, left.values(), strict=True)),
        "median_tokens_before_parting": statistics.median(shared),
    }


def measured(args: argparse.Namespace, weights: LlamaWeights, plan: BatchPlan, asked: list[Request]) -> dict[str, Any]:
    """The runner that `complete_prompts` would take, and with --compare-eager its eager twin on the same device."""
    runner = runner_for(weights, plan)
    say(f"{plan.num_slots} slots of {runner.model.capacity}, {plan.num_bytes / 2**30:.2f} GiB; warm-up")
    timed_run(runner, asked[: plan.num_slots], args.max_prefill_tokens)
    speeds = []
    texts: dict[str, tuple[int, ...]] = {}
    for _ in range(args.repeats):
        speed, texts = timed_run(runner, asked, args.max_prefill_tokens)
        say(f"{speed:.0f} tokens/s")
        speeds.append(speed)
    num_steps = (args.step_repeats + 1) * runner.pace.steps
    length = max(1, plan.capacity - args.new_tokens // 2 - num_steps)
    times = step_ms(runner, asked, length, args.step_repeats)
    length += num_steps // 2
    floor = floor_ms(weights, plan.num_slots, length, args.bandwidth)
    found: dict[str, Any] = {
        "slots": plan.num_slots,
        "captured": runner.pace.captures,
        "tokens_per_s": {"median": statistics.median(speeds), "minimum": min(speeds), "maximum": max(speeds)},
        "step_ms": {"median": statistics.median(times), "minimum": min(times), "maximum": max(times)},
        "step_length": length,
        "floor_ms": floor,
        "share_of_floor": floor / statistics.median(times),
    }
    if args.compare_eager:
        del runner
        eager = runner_for(weights, plan, captures=False)
        some = asked[: plan.num_slots]
        speed, plain = timed_run(eager, some, args.max_prefill_tokens)
        say(f"eager: {speed:.0f} tokens/s")
        found["eager"] = {"tokens_per_s": speed, **agreement({k: texts[k] for k in plain}, plain)}
    return found


def say(text: str) -> None:
    """To stderr at once."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Read, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2-135m", help="alias or folder")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch", type=int, nargs="+", default=[320], help="sequences at a time; several are measured")
    parser.add_argument("--num", type=int, help="prompts; by default four times the batch")
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--max-prefill-tokens", type=int, default=16384)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--step-repeats", type=int, default=20)
    parser.add_argument("--bandwidth", type=float, default=4.8e12, help="bytes per second of the device's memory")
    parser.add_argument("--compare-eager", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    placement = place(args.dtype, args.device)
    weights = read_llama(target_folder(args.target, Terminal()), dtype=placement.dtype, device=placement.device)
    document: dict[str, Any] = {
        "schema": "eyas.batch_generation/1",
        "arguments": {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()},
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(placement.device) if placement.device.type == "cuda" else "cpu",
        "batches": {},
    }
    for batch in args.batch:
        asked = requests(args, args.num or 4 * batch, weights.head.shape[0])
        plan = plan_for(weights, asked, BatchSettings(max_batch=batch))
        document["batches"][batch] = measured(args, weights, plan, asked)
        if args.out:
            args.out.write_text(json.dumps(document, indent=1))
    print(json.dumps(document))


if __name__ == "__main__":
    main()
