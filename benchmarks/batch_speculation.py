"""Speculation in batches: tokens per second, plain and with drafts, at several numbers of sequences at a time.

    python benchmarks/batch_speculation.py --target T --draft D --data ROWS.jsonl --device cuda --dtype bfloat16 \
        --batch 1 8 32 64 -k 3 --max-new-tokens 128 --out OUT.json

ROWS: one object a line with `prompt_ids`. Greedy; both arms in turn in the same run; prompts' time is in. Fewer rows
than twice the batch are repeated, so that sequences join and leave. Last line of stdout = one JSON object; exit
code 1 where a speedup is above its accept length, which cannot be. Partial results go to --out as they come.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from eyas.cli.target_option import target_folder
from eyas.cli.terminal import Terminal
from eyas.contract.target_spec import read_target
from eyas.engine.batches.generator import BatchGenerator, Completion, Request
from eyas.engine.batches.open import BatchSettings, plan_for, runner_for, speculative_runner
from eyas.engine.batches.plan import BatchPlan
from eyas.engine.batches.runner import BatchRunner
from eyas.engine.llama_weights import LlamaWeights, read_llama
from eyas.models.aux_boundaries import required_boundaries
from eyas.models.draft import Eagle3Draft
from eyas.models.load_draft import load_draft
from eyas.models.placement import place
from eyas.models.stop_ids import stop_ids_of
from eyas.talk import Silent

# A round writes up to K tokens past a text's end, and blocks are read late.
OVERSHOOT = 64


def requests(rows: list[dict[str, Any]], num: int, limit: int, stop_ids: frozenset[int]) -> list[Request]:
    """The rows in turn, `num` in all."""
    turn = itertools.islice(itertools.cycle(rows), num)
    return [
        Request(id=str(i), prompt_ids=tuple(row["prompt_ids"]), max_new_tokens=limit, stop_ids=stop_ids)
        for i, row in enumerate(turn)
    ]


def timed(runner: BatchRunner, asked: list[Request]) -> tuple[float, dict[str, Completion]]:
    """Tokens per second over all requests, and the texts."""
    started = time.perf_counter()
    generator = BatchGenerator(runner, lambda ids: "", max_prefill_tokens=16384)
    texts = {c.id: c for c in generator.run(asked, Silent())}
    return sum(len(c.ids) for c in texts.values()) / (time.perf_counter() - started), texts


def arm(name: str, speeds: list[float], texts: dict[str, Completion], depth: int) -> dict[str, Any]:
    """Figures of one arm."""
    accepted = [a for c in texts.values() for a in c.accepted]
    return {
        "arm": name,
        "num_draft_tokens": depth,
        "tokens_per_s": {"median": statistics.median(speeds), "minimum": min(speeds), "maximum": max(speeds)},
        "new_tokens": sum(len(c.ids) for c in texts.values()),
        "accept_length": 1 + statistics.fmean(accepted) if accepted else 1.0,
    }


def measured(
    args: argparse.Namespace, weights: LlamaWeights, draft: Eagle3Draft, asked: list[Request], plan: BatchPlan
) -> list[dict[str, Any]]:
    """Plain and every depth at one batch size, in turn, so that a drift of the machine meets all."""
    boundaries = required_boundaries(draft)
    runners = {0: runner_for(weights, plan)}
    for depth in args.k:
        runners[depth] = speculative_runner(weights, draft, plan, aux_boundaries=boundaries, num_draft_tokens=depth)
    speeds: dict[int, list[float]] = {depth: [] for depth in runners}
    texts: dict[int, dict[str, Completion]] = {}
    for repeat in range(args.repeats + 1):
        for depth, runner in runners.items():
            speed, texts[depth] = timed(runner, asked)
            say(f"batch {plan.num_slots}, K = {depth}: {speed:.0f} tokens/s{'' if repeat else ' (warm-up)'}")
            if repeat:
                speeds[depth].append(speed)
    plain = statistics.median(speeds[0])
    arms = []
    for depth in runners:
        found = arm("eagle3" if depth else "plain", speeds[depth], texts[depth], depth)
        found["speedup"] = found["tokens_per_s"]["median"] / plain
        found["is_possible"] = found["speedup"] <= found["accept_length"] * 1.02
        found["texts_equal_to_plain"] = sum(texts[depth][i].ids == c.ids for i, c in texts[0].items())
        arms.append(found)
    return arms


def say(text: str) -> None:
    """To stderr at once."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Read, measure, print."""
    args = parsed()
    placement = place(args.dtype, args.device)
    folder = target_folder(args.target, Terminal())
    weights = read_llama(folder, dtype=placement.dtype, device=placement.device)
    draft = load_draft(
        args.draft,
        placement,
        target_spec=read_target(folder),
        target_embedding=weights.embedding,
        target_head=weights.head,
        talk=Silent(),
    )
    rows = [json.loads(line) for line in args.data.read_text().splitlines() if line.strip()]
    document: dict[str, Any] = {
        "schema": "eyas.batch_speculation/1",
        "arguments": {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()},
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(placement.device) if placement.device.type == "cuda" else "cpu",
        "batches": {},
    }
    for batch in args.batch:
        num = args.num or max(len(rows), 2 * batch)
        asked = requests(rows, num, args.max_new_tokens, stop_ids_of(folder))
        plan = plan_for(weights, asked, BatchSettings(max_batch=batch))
        plan = replace(plan, capacity=plan.capacity + OVERSHOOT)
        document["batches"][batch] = measured(args, weights, draft, asked, plan)
        if args.out:
            args.out.write_text(json.dumps(document, indent=1))
    print(json.dumps(document))
    arms = [arm for arms in document["batches"].values() for arm in arms]
    sys.exit(0 if all(arm["is_possible"] for arm in arms) else 1)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2-135m", help="alias or folder")
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("-k", type=int, nargs="+", default=[3], help="drafts per round; several are arms")
    parser.add_argument("--num", type=int, help="requests; by default all rows, or twice the batch if that is more")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
