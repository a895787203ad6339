"""The same run on 1 process, on N, and on N with --shard: how far do the curves differ, and how fast is each?

    python benchmarks/ranks_agree.py --target smollm2-135m --rows ROWS --ranks 2 --device cuda --json OUT.json
    python benchmarks/ranks_agree.py --target TINY --rows ROWS --ranks 2 --device cpu --steps 8       a trial on the CPU

Progress on stderr; the record is saved after each run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def train(options: argparse.Namespace, out: Path, ranks: int, *more: str) -> dict[str, Any]:
    """One run by the command line; its losses and speed."""
    command = [
        *[sys.executable, "-m", "eyas", "train", "--target", options.target, "--data", options.rows],
        *["--out", str(out), "--device", options.device, "--gpus", str(ranks), "--steps", str(options.steps)],
        *["--batch-tokens", str(options.batch_tokens), "--draft-vocab-size", str(options.draft_vocab_size), "--json"],
        *["--micro-batch-tokens", str(options.micro_batch_tokens), "--checkpoint-every-s", "0", *more],
    ]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return {"ranks": ranks, "options": more, "error": done.stderr[-2000:]}
    document = json.loads(done.stdout.splitlines()[-1])
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    return {
        "ranks": ranks,
        "options": more,
        "seconds_with_start": round(time.monotonic() - start, 1),
        "tokens_per_s": steps[-1]["tokens_per_s"],
        "mfu": steps[-1]["mfu"],
        "peak_memory_bytes": steps[-1]["peak_memory_bytes"],
        "accept_lengths": document["accept_lengths"],
        "losses": [line["loss"] for line in steps],
        "grad_norms": [line["grad_norm"] for line in steps],
    }


def largest_difference(one: dict[str, Any], two: dict[str, Any]) -> float:
    """Relative, over losses and norms of all steps."""
    pairs = [pair for key in ("losses", "grad_norms") for pair in zip(one[key], two[key], strict=True)]
    return max(abs(a - b) / max(abs(a), abs(b)) for a, b in pairs)


def main() -> int:
    """0 when every run worked and none differs by more than allowed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-tokens", type=int, default=32768)
    parser.add_argument("--micro-batch-tokens", type=int, default=16384)
    parser.add_argument("--draft-vocab-size", type=int, default=8192)
    parser.add_argument("--tolerance", type=float, default=0.02, help="relative; bf16 sums in another order")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, runs = Path(name), dict[str, dict[str, Any]]()
        variants = {
            "one": (1, ()),
            "one again": (1, ()),
            "ranks": (options.ranks, ()),
            "shard": (options.ranks, ("--shard",)),
        }
        for label, (ranks, more) in variants.items():
            run = train(options, folder / label.replace(" ", "-"), ranks, *more)
            if "losses" in run and "losses" in runs.get("one", {}):
                run["largest_difference_to_one"] = largest_difference(runs["one"], run)
            runs[label] = run
            shown = {key: value for key, value in run.items() if key not in ("losses", "grad_norms")}
            print(f"{label}: {shown}", file=sys.stderr, flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps({"schema": "eyas.ranks-agree/1", "runs": runs}, indent=1))
    differences = [run.get("largest_difference_to_one", 0.0) for run in runs.values()]
    is_good = all("error" not in run for run in runs.values()) and max(differences) <= options.tolerance
    print(json.dumps({"is_good": is_good, "largest_difference": max(differences), "cpus": os.cpu_count()}))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
