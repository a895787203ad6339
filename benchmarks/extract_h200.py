"""Throughput of `eyas extract --from transformers`: its share of the measured bf16 peak, and what a store costs it.

python benchmarks/extract_h200.py --shape llama8b --store /tmp --out extract_8b.json
python benchmarks/extract_h200.py --shape smollm2 --store /tmp --out extract_smollm2.json
python benchmarks/extract_h200.py --shape llama8b --offload 0.5 --store /tmp       # half of the layers in host memory
python benchmarks/extract_h200.py --shape llama8b --gpus 2 --store /tmp            # two GPUs
python benchmarks/extract_h200.py --tiny --device cpu --store /tmp                 # every line of it, in seconds

The target has random weights of the shape. First the peak: products of bf16 matrices of 8192 x 8192, the median of ten.
Then the source alone (states copied to the host and let go), into a store in --store, and into one of fp8; each over
rows of one length and over rows of the lengths of conversations. FLOP: two a weight of the layers and a token, and
causal attention (2 * T * H a token and layer). The disk's own speed is measured with benchmarks/store_speed.py. The
last line is JSON.
"""

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from train_h200 import SHAPES, dtype_of, machine, make_target, say, shape_of

PEAK_SIZE, PEAK_REPEATS = 8192, 10


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="llama8b")
    parser.add_argument("--tokens", type=int, default=400_000, help="of an arm")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a row; the longest of the mixed ones")
    parser.add_argument("--batch-tokens", type=int, nargs="+", default=[32768])
    parser.add_argument("--repeats", type=int, default=3, help="of the arm without a store")
    parser.add_argument("--store", type=Path, required=True, help="folder for the stores; removed afterwards")
    parser.add_argument("--gpus", type=int, default=1, help="over which the layers are spread")
    parser.add_argument("--offload", type=float, default=0.0, help="share of the weights that stays in host memory")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    if args.tiny:
        args.tokens, args.length, args.batch_tokens, args.repeats = 2000, 64, [256], 2
    args.seq, args.draft_vocab = args.length, 0
    return args


def main() -> None:
    args = parsed()
    peak = measured_peak(args)
    target = make_target(args)
    if args.gpus > 1 or args.offload:
        spread_out(args, target)
    found: dict[str, Any] = {"schema": "eyas.bench-extract/1", "shape": args.shape, "machine": machine(args.device)}
    found |= {"peak_tflops": peak / 1e12, "gpus": args.gpus, "offload": args.offload, "arms": []}
    for batch_tokens in args.batch_tokens:
        for kind in ("even", "mixed"):
            rows = rows_of(args, kind)
            for arm, dtype in (("alone", None), ("store", None), ("store fp8", "float8_e4m3")):
                record = run(args, target, rows, arm, dtype, batch_tokens) | {"rows": kind}
                record["share_of_peak"] = record["flops"] / peak
                say(
                    f"{kind} rows, {arm}, batches of {batch_tokens}: {record['tokens_per_s']:.0f} tokens/s"
                    f" ({record['range'][0]:.0f} - {record['range'][1]:.0f}), {record['share_of_peak']:.1%} of"
                    f" {peak / 1e12:.0f} TFLOP/s, {record['gb_s']:.2f} GB/s"
                )
                found["arms"].append(record)
    text = json.dumps(found)
    if args.out is not None:
        args.out.write_text(text + "\n")
    print(text)


def measured_peak(args: argparse.Namespace) -> float:
    """FLOP/s of large matrix products."""
    size = 256 if args.tiny else PEAK_SIZE
    a, b = (torch.randn(size, size, device=args.device, dtype=dtype_of(args)) for _ in range(2))
    times = []
    for _ in range(PEAK_REPEATS + 3):
        sync(args)
        began = time.perf_counter()
        for _ in range(4):
            a @ b
        sync(args)
        times.append((time.perf_counter() - began) / 4)
    return 2 * size**3 / statistics.median(times[3:])


def spread_out(args: argparse.Namespace, target: Any) -> None:
    """Move the target as `eyas extract --gpus N` does where a GPU has too little memory."""
    from eyas.models.target.spread import spread

    target.model.to("cpu")
    size = sum(parameter.nbytes for parameter in target.model.parameters())
    devices = [torch.device(args.device if args.device == "cpu" else f"cuda:{i}") for i in range(args.gpus)]
    rooms = [int((1 - args.offload) * size / args.gpus) if args.offload else size] * args.gpus
    places = spread(target, devices, rooms)
    say(f"{len(places)} layers on {devices}, {sum(place.is_offloaded for place in places)} of them in host memory")


def rows_of(args: argparse.Namespace, kind: str) -> list[Any]:
    """Random ids: rows of one length, or log-normal ones."""
    from eyas.extract.source import AskedRow

    generator, vocab = torch.Generator().manual_seed(3), shape_of(args).vocab
    rows, held = list[Any](), 0
    while held < args.tokens:
        drawn = torch.randn(1, generator=generator).mul(0.6).exp().item() * 0.45 * args.length
        length = args.length if kind == "even" else int(min(args.length, max(16, drawn)))
        rows.append(AskedRow(token_ids=tuple(torch.randint(0, vocab, (length,), generator=generator).tolist())))
        held += length
    return rows


def run(
    args: argparse.Namespace, target: Any, rows: Sequence[Any], arm: str, dtype: Any, batch_tokens: int
) -> dict[str, Any]:
    source = source_of(args, target, dtype, batch_tokens)
    num_tokens = sum(len(row.token_ids) for row in rows)
    for _ in source.states(rows[: max(2, 2 * batch_tokens // args.length)]):  # kernels are chosen, pinned memory is had
        pass
    repeats = args.repeats if arm == "alone" else 1
    rates, num_bytes = [], 0
    for _ in range(repeats):
        sync(args)
        began = time.perf_counter()
        num_bytes = fill(args, source, rows) if arm != "alone" else sum(r.states.nbytes for r in source.states(rows))
        sync(args)
        rates.append(num_tokens / (time.perf_counter() - began))
    rate = statistics.median(rates)
    return {
        "arm": arm,
        "batch_tokens": batch_tokens,
        "tokens": num_tokens,
        "tokens_per_s": rate,
        "range": [min(rates), max(rates)],
        "gb_s": num_bytes / num_tokens * rate / 1e9,
        "flops": rate * flop_per_token(args, rows),
        "peak_allocated_gb": torch.cuda.max_memory_allocated() / 1e9 if args.device.startswith("cuda") else None,
    }


def source_of(args: argparse.Namespace, target: Any, dtype: Any, batch_tokens: int) -> Any:
    from eyas.contract.spec.target_spec import TargetSpec
    from eyas.extract.source import Wanted
    from eyas.extract.transformers_source import TransformersSource
    from eyas.models.placement import Placement

    shape = shape_of(args)
    spec = TargetSpec(
        where="random",
        architectures=("LlamaForCausalLM",),
        model_type="llama",
        text_model_type="llama",
        hidden_size=shape.hidden,
        num_layers=shape.layers,
        vocab_size=shape.vocab,
    )
    wanted = Wanted(folder=Path("random"), target=spec, boundaries=shape.boundaries, dtype=dtype)
    placement = Placement(dtype_of(args), torch.device(args.device))
    return TransformersSource(wanted, placement, batch_tokens, target=target)


def fill(args: argparse.Namespace, source: Any, rows: Sequence[Any]) -> int:
    """All rows into a store, which is removed; bytes of its states."""
    import numpy as np

    from eyas.store import StoreAbout, StoreRow, StoreWriter

    about = StoreAbout(
        target={},
        hidden_size=source.wanted.target.hidden_size,
        num_layers=source.wanted.target.num_layers,
        vocab_size=source.wanted.target.vocab_size,
        boundaries=source.wanted.boundaries,
        source=source.name,
        dtype=source.dtype,
    )
    place, num_bytes = args.store / "eyas-extract-benchmark", 0
    shutil.rmtree(place, ignore_errors=True)
    with StoreWriter.open(place, about) as writer:
        for found in source.states(rows):
            ids = np.array(rows[found.number].token_ids, np.int32)
            writer.append(StoreRow(token_ids=ids, states=found.states, scales=found.scales))
            num_bytes += found.states.nbytes
    shutil.rmtree(place)
    return num_bytes


def flop_per_token(args: argparse.Namespace, rows: Sequence[Any]) -> float:
    shape = shape_of(args)
    kv = shape.kv_heads * shape.head_dim
    weights = shape.layers * shape.hidden * (2 * shape.hidden + 2 * kv + 3 * shape.intermediate)
    squares = sum(len(row.token_ids) ** 2 for row in rows) / sum(len(row.token_ids) for row in rows)
    return float(2 * weights + 2 * squares * shape.hidden * shape.layers)


def sync(args: argparse.Namespace) -> None:
    if args.device.startswith("cuda"):
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
