"""The CPU engine beside its floor, its parts, transformers, and torch's own kernels.

    python benchmarks/engine_cpu.py > benchmarks/engine_cpu_<yyyymm>.json

Runs on the built-in target and the shipped draft. Measure on a quiet machine. Last line of stdout = one JSON object.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

from eyas import shipped
from eyas.bench.bench_config import BenchConfig
from eyas.bench.bench_engine import bench_engine
from eyas.cli.commands.bench import render
from eyas.cli.target_option import cache_folder, target_folder
from eyas.cli.terminal import Terminal
from eyas.engine.llama.llama_target import LlamaTarget
from eyas.engine.llama.llama_weights import LlamaWeights, read_llama
from eyas.engine.llama.native import load_kernels

ROWS = (1, 2, 3, 4, 6, 8)
CONTEXT = 200


def ms(run: Callable[[], Any], repeats: int = 9) -> dict[str, float]:
    """Median, minimum and maximum milliseconds."""
    run()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - started))
    return {"median": median(times), "min": min(times), "max": max(times)}


def read_speed() -> float:
    """GB/s of reading memory with all threads: the floor's other half."""
    block = torch.ones(160_000_000)
    return 4 * block.numel() / (ms(lambda: block.sum())["min"] * 1e6)


def forward_ms(target: LlamaTarget, rows: int) -> dict[str, float]:
    """One pass over `rows` positions behind `CONTEXT` others."""
    ids = list(range(5, 5 + rows))

    def run() -> None:
        target.forward(ids)
        target.truncate(CONTEXT)

    return ms(run)


def matmul_ms(weights: LlamaWeights, rows: int, prepacked: bool) -> dict[str, float]:
    """All matrix products of a pass and nothing else, by MKL or by oneDNN on prepacked weights."""
    matrices = [m for b in weights.blocks for m in (b.qkv, b.o, b.gate_up, b.down)] + [weights.head]
    inputs = {m.shape[1]: torch.randn(rows, m.shape[1]) for m in matrices}
    if not prepacked:
        return ms(lambda: [F.linear(inputs[m.shape[1]], m) for m in matrices], 5)
    packed = [(torch.ops.mkldnn._reorder_linear_weight(m, rows), m.shape[1]) for m in matrices]
    linear = torch.ops.mkldnn._linear_pointwise
    return ms(lambda: [linear(inputs[k], p, None, "none", [], "") for p, k in packed], 5)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("-k", default="1..5,auto")
    parser.add_argument("--max-prompts", type=int, default=None)
    parser.add_argument("--no-matmuls", action="store_true")
    args = parser.parse_args()
    talk, result = Terminal(), dict[str, Any]()
    folder, most = target_folder("smollm2-135m", talk), torch.get_num_threads()
    weights = read_llama(folder, dtype=torch.float32, device=torch.device("cpu"))
    result["memory_gb_per_s"] = read_speed()
    result["floor_ms"] = weights.num_bytes / result["memory_gb_per_s"] / 1e6
    for threads in sorted({1, most}):
        target = LlamaTarget(weights, kernels=load_kernels(cache_folder(), talk), num_threads=threads)
        target.start(CONTEXT + 16, ())
        target.prefill(list(range(CONTEXT)))
        result[f"native_{threads}_threads_ms"] = {rows: forward_ms(target, rows) for rows in ROWS}
    plain = LlamaTarget(weights)
    plain.start(CONTEXT + 16, ())
    plain.prefill(list(range(CONTEXT)))
    result["torch_ms"] = {rows: forward_ms(plain, rows) for rows in (1, 4)}
    if not args.no_matmuls:
        for name, prepacked in (("matmuls_mkl_ms", False), ("matmuls_onednn_prepacked_ms", True)):
            result[name] = {rows: matmul_ms(weights, rows, prepacked) for rows in (1, 4, 8)}
    config = BenchConfig(
        num_draft_tokens=args.k,
        repeats=args.repeats,
        max_new_tokens=args.max_new_tokens,
        max_prompts=args.max_prompts,
        peer="transformers",
        device="cpu",
    )
    data, draft = [shipped.eval_rows_path()], shipped.draft_folder()
    record = bench_engine(folder, draft, data, config, cache=cache_folder(), talk=talk).as_document()
    print(render(record))
    print(json.dumps({**result, "python": platform.python_version(), "torch": torch.__version__, "bench": record}))


if __name__ == "__main__":
    main()
