"""A training step computed launch by launch beside one recorded as CUDA graphs: same rows, same weights, same losses.

python benchmarks/train_step_h200.py --shape smollm2 --tokens-per-step 4096 32768 --out train_step.json
python benchmarks/train_step_h200.py --tiny --device cpu          # every line of it, in seconds

Each arm makes the same target and draft from one seed and trains on the same batches, whose rows have the lengths of
conversations (log-normal, 16 ... --longest). A pass over all batches comes first: it compiles kernels and records the
shapes, and its time is given too. Then --repeats passes are timed, without waiting between steps. Losses of all steps
are compared between the arms. The last line is JSON.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from train_h200 import SHAPES, dtype_of, machine, make_draft, make_target, say, shape_of

ARMS = ("computed", "captured")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="smollm2")
    parser.add_argument("--tokens-per-step", type=int, nargs="+", default=[4096, 32768])
    parser.add_argument("--micro", type=int, default=16384, help="tokens of a micro-batch")
    parser.add_argument("--longest", type=int, default=542, help="tokens of the longest row")
    parser.add_argument("--batches", type=int, default=24, help="different optimiser steps")
    parser.add_argument("--repeats", type=int, default=4, help="timed passes over them")
    parser.add_argument("--ttt-steps", type=int, default=7)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    if args.tiny:
        args.tokens_per_step, args.longest, args.batches, args.repeats = [300], 60, 3, 2
    args.seq, args.draft_vocab = args.longest, 0
    return args


def batches_of(args: argparse.Namespace, tokens_per_step: int) -> list[list[Any]]:
    """Rows of log-normal lengths until a batch is full; all but the first third of each is supervised."""
    from eyas.data.text.tokenise import TokenRow

    generator, vocab = torch.Generator().manual_seed(7), shape_of(args).vocab
    batches = []
    for _ in range(args.batches):
        rows, held = list[Any](), 0
        while True:
            drawn = torch.randn(1, generator=generator).mul(0.6).exp().item() * 0.45 * args.longest
            length = int(min(args.longest, max(16, drawn)))
            if rows and held + length > tokens_per_step:
                break
            ids = torch.randint(0, vocab, (length,), generator=generator).tolist()
            rows.append(TokenRow(tuple(ids), tuple(i >= length // 3 for i in range(length))))
            held += length
        batches.append(rows)
    return batches


def run_arm(args: argparse.Namespace, arm: str, batches: list[list[Any]]) -> dict[str, Any]:
    from eyas.train.config import TrainConfig
    from eyas.train.optimise.step_outcome import read_steps
    from eyas.train.optimise.teaching import Teaching
    from eyas.train.optimise.trainer import Trainer
    from eyas.train.step.captured import CudaGraphs, run_again

    is_cuda = args.device.startswith("cuda")
    if is_cuda:
        torch.cuda.reset_peak_memory_stats()
    target = make_target(args)
    draft = make_draft(args, target)
    record: Any = None
    if arm == "captured":
        record = CudaGraphs(target.device) if is_cuda else run_again
    config = TrainConfig(ttt_steps=args.ttt_steps, micro_batch_tokens=args.micro)
    num_steps = len(batches) * (args.repeats + 1)
    trainer = Trainer(draft, Teaching.live(target, config), config, lr=1e-4, num_steps=num_steps, record=record)
    pending: list[Any] = []
    passes, sent = [], []
    for repeat in range(args.repeats + 1):
        sync(is_cuda)
        begin = time.perf_counter()
        for i, rows in enumerate(batches):
            pending.append(trainer.start_step(rows, repeat * len(batches) + i))
        sent.append(time.perf_counter() - begin)
        sync(is_cuda)
        passes.append(time.perf_counter() - begin)
        say(f"{arm}: pass {repeat} took {passes[-1]:.2f} s (sent in {sent[-1]:.2f} s)")
    outcomes, error = read_steps(pending)
    if error is not None:
        raise error
    num_tokens = sum(len(row.token_ids) for rows in batches for row in rows)
    rates = sorted(num_tokens / seconds for seconds in passes[1:])
    return {
        "arm": arm,
        "why_not_captured": trainer.why_not_captured,
        "first_pass_s": passes[0],
        "tokens_per_s": statistics.median(rates),
        "tokens_per_s_range": [rates[0], rates[-1]],
        "ms_per_step": 1e3 * statistics.median(passes[1:]) / len(batches),
        "sent_ms_per_step": 1e3 * statistics.median(sent[1:]) / len(batches),
        "padding_share": sum(step.padding_share for step in pending) / len(pending),
        "peak_allocated_gb": torch.cuda.max_memory_allocated() / 1e9 if is_cuda else None,
        "peak_reserved_gb": torch.cuda.max_memory_reserved() / 1e9 if is_cuda else None,
        "losses": [outcome.loss for outcome in outcomes],
        "grad_norms": [outcome.grad_norm for outcome in outcomes],
    }


def sync(is_cuda: bool) -> None:
    if is_cuda:
        torch.cuda.synchronize()


def largest_gap(one: list[float], two: list[float]) -> float:
    """Relative."""
    return max(abs(a - b) / max(abs(a), 1e-9) for a, b in zip(one, two, strict=True))


def main() -> None:
    args = parsed()
    records = []
    for tokens_per_step in args.tokens_per_step:
        args.tokens = tokens_per_step
        batches = batches_of(args, tokens_per_step)
        found = []
        for arm in args.arms:
            say(f"{arm}: {args.shape}, {tokens_per_step} tokens a step, {dtype_of(args)}")
            try:
                found.append(run_arm(args, arm, batches))
            except (RuntimeError, torch.OutOfMemoryError) as error:
                say(f"{arm} failed: {error}")
                found.append({"arm": arm, "failed": str(error).splitlines()[0]})
            if args.device.startswith("cuda"):
                torch.cuda.empty_cache()
        record: dict[str, Any] = {"shape": args.shape, "tokens_per_step": tokens_per_step, "arms": found}
        if len(found) == 2 and all("losses" in arm for arm in found):
            record["largest_relative_gap"] = {
                name: largest_gap(found[0][name], found[1][name]) for name in ("losses", "grad_norms")
            }
            record["speedup"] = found[1]["tokens_per_s"] / found[0]["tokens_per_s"]
        records.append(record)
        for arm in found:
            say(json.dumps({k: v for k, v in arm.items() if k not in ("losses", "grad_norms")}))
    document = {
        "schema": "eyas.train-step/1",
        "machine": machine(args.device),
        "argv": sys.argv[1:],
        "records": records,
    }
    if args.out is not None:
        args.out.write_text(json.dumps(document, indent=1) + "\n")
    for record in records:
        for arm in record["arms"]:
            arm.pop("losses", None)
            arm.pop("grad_norms", None)
    print(json.dumps(document))


if __name__ == "__main__":
    main()
