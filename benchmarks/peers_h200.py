"""Single-stream speed of vLLM or SGLang, plain or with an EAGLE-3 draft, on the prompts that our engine is timed on.

    PYTHONPATH=SITE python benchmarks/peers_h200.py vllm|sglang plain|eagle3 --target T --draft D --data ROWS.jsonl \
        --out OUT.json [-k 3] [--max-new-tokens 128] [--repeats 3] [--lock FILE]

Greedy, bf16, one request at a time. Decode speed = (tokens - 1) / (time of the whole answer - time of a one-token
answer to the same prompt): the prompt's own pass is left out, as in our engine's figures. Engines may load side by
side: with --lock, only one at a time is timed.
"""

import argparse
import fcntl
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

Answer = Callable[[list[int], int], list[int]]


def main() -> None:
    """Load, warm up, wait for the lock, time, write."""
    options = parse()
    rows = [json.loads(line) for line in options.data.read_text().splitlines() if line.strip()]
    answer, version = (open_vllm if options.engine == "vllm" else open_sglang)(options)
    for row in rows[:2]:
        answer(row["prompt_ids"], 32)
    with open(options.lock or os.devnull, "w") as lock:
        if options.lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
        measured = [measure(answer, rows, options.max_new_tokens) for _ in range(options.repeats)]
    speeds = [m["tokens_per_s"] for m in measured]
    document = {
        "schema": "eyas.peer/1",
        "engine": options.engine,
        "version": version,
        "arm": options.arm,
        "num_draft_tokens": options.k if options.arm == "eagle3" else 0,
        "num_prompts": len(rows),
        "max_new_tokens": options.max_new_tokens,
        "tokens_per_s": {"median": statistics.median(speeds), "minimum": min(speeds), "maximum": max(speeds)},
        "repeats": measured,
    }
    options.out.write_text(json.dumps(document, indent=1))
    print(json.dumps({k: v for k, v in document.items() if k != "repeats"}), flush=True)
    os._exit(0)  # engines' children can hang at exit; everything is written


def measure(answer: Answer, rows: list[dict], max_new_tokens: int) -> dict[str, object]:
    """One pass over all prompts."""
    tokens, seconds, whole, by_set = 0, 0.0, 0.0, {}
    for row in rows:
        begin = time.perf_counter()
        answer(row["prompt_ids"], 1)
        first = time.perf_counter()
        ids = answer(row["prompt_ids"], max_new_tokens)
        end = time.perf_counter()
        spent = (end - first) - (first - begin)
        tokens, seconds, whole = tokens + len(ids) - 1, seconds + spent, whole + end - first
        counted = by_set.setdefault(row["set"], [0, 0.0])
        counted[0] += len(ids) - 1
        counted[1] += spent
    return {
        "tokens": tokens,
        "tokens_per_s": tokens / seconds,
        "tokens_per_s_with_prefill": (tokens + len(rows)) / whole,
        "by_set": {name: count / time_s for name, (count, time_s) in by_set.items()},
    }


def open_vllm(options: argparse.Namespace) -> tuple[Answer, str]:
    """vLLM's offline engine."""
    import vllm

    speculation = {"method": "eagle3", "model": str(options.draft), "num_speculative_tokens": options.k}
    engine = vllm.LLM(
        model=str(options.target),
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=8,
        kv_cache_memory_bytes=4 << 30,
        gpu_memory_utilization=0.3,
        enable_prefix_caching=False,
        speculative_config=speculation if options.arm == "eagle3" else None,
    )

    def answer(ids: list[int], limit: int) -> list[int]:
        how = vllm.SamplingParams(temperature=0.0, max_tokens=limit)
        (output,) = engine.generate({"prompt_token_ids": ids}, how, use_tqdm=False)
        return list(output.outputs[0].token_ids)

    return answer, vllm.__version__


def open_sglang(options: argparse.Namespace) -> tuple[Answer, str]:
    """SGLang's offline engine."""
    import sglang

    speculation = {
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": str(options.draft),
        "speculative_num_steps": options.k,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": options.k + 1,
    }
    engine = sglang.Engine(
        model_path=str(options.target),
        dtype="bfloat16",
        context_length=2048,
        attention_backend="triton",
        sampling_backend="pytorch",
        mem_fraction_static=0.3,
        max_total_tokens=32768,
        max_running_requests=8,
        cuda_graph_max_bs_decode=8,
        disable_radix_cache=True,
        **(speculation if options.arm == "eagle3" else {}),
    )

    def answer(ids: list[int], limit: int) -> list[int]:
        output = engine.generate(input_ids=ids, sampling_params={"temperature": 0.0, "max_new_tokens": limit})
        return list(output["output_ids"])

    return answer, sglang.__version__


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=["vllm", "sglang"])
    parser.add_argument("arm", choices=["plain", "eagle3"])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("-k", type=int, default=3, help="drafts per verify pass")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lock", help="file that is locked while timing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
