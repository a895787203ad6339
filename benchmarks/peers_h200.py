"""Speed of vLLM or SGLang on the prompts that our engine is timed on: one stream, and B requests at a time.

    PYTHONPATH=SITE python benchmarks/peers_h200.py vllm|sglang plain|eagle3 --target T --draft D --single ROWS.jsonl \
        --data ROWS.jsonl --out OUT.json [--batch 1 8 32] [-k 3] [--max-new-tokens 128] [--repeats 3] [--lock FILE]

Greedy, bf16, the target's own stop ids; one engine load serves all. Prints `ready` when it could begin.
- `--single`: decode speed = (tokens - 1) / (time of the whole answer - time of a one-token answer to the same prompt):
  the prompt's own pass is left out, as in `engine_h200.py`.
- `--data`: a new request goes in when one ends, so that B are always under way; rows are repeated up to twice the
  batch, as in `eyas bench --batch`. Tokens per second = all new tokens over the whole time, prompts included.
Engines may load side by side: with --lock, only one at a time is timed.
"""

import argparse
import asyncio
import fcntl
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Prompts, limit, requests at a time -> new tokens in all, and verify passes if the engine counts them per request.
Answers = Callable[[list[list[int]], int, int], tuple[int, int | None]]


def main() -> None:
    """Load, warm up, wait for the lock, time, write."""
    options = parse()
    answers, version = (open_vllm if options.engine == "vllm" else open_sglang)(options)
    document: dict[str, Any] = {
        "schema": "eyas.peer/2",
        "engine": options.engine,
        "version": version,
        "arm": options.arm,
        "num_draft_tokens": options.k if options.arm == "eagle3" else 0,
        "max_new_tokens": options.max_new_tokens,
        "batches": {},
    }
    print("ready", flush=True)
    with open(options.lock or os.devnull, "w") as lock:
        if options.lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
        if options.single:
            document["single"] = measure_single(answers, rows_of(options.single), options)
            print("single", document["single"], flush=True)
        rows = rows_of(options.data)
        for batch in options.batch:
            num = max(len(rows), 2 * batch)
            prompts = [row["prompt_ids"] for row in itertools.islice(itertools.cycle(rows), num)]
            document["batches"][batch] = measure(answers, prompts, options, batch)
            print(batch, document["batches"][batch], flush=True)
            options.out.write_text(json.dumps(document, indent=1))
    print(json.dumps(document), flush=True)
    os._exit(0)  # engines' children can hang at exit; everything is written


def rows_of(path: Path) -> list[dict[str, Any]]:
    """One object a line, with `prompt_ids` and `set`."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def spread(speeds: list[float]) -> dict[str, float]:
    """Of repeats."""
    return {"median": statistics.median(speeds), "minimum": min(speeds), "maximum": max(speeds)}


def measure_single(answers: Answers, rows: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """One request at a time: a warm-up of two prompts, then the repeats; prompts' own passes left out, and in."""
    for row in rows[:2]:
        answers([row["prompt_ids"]], 32, 1)
    decode, whole = [], []
    tokens = passes = 0
    for _ in range(options.repeats):
        tokens, passes, seconds, seconds_with_prompt = 0, 0, 0.0, 0.0
        for row in rows:
            begin = time.perf_counter()
            answers([row["prompt_ids"]], 1, 1)
            first = time.perf_counter()
            num, num_passes = answers([row["prompt_ids"]], options.max_new_tokens, 1)
            end = time.perf_counter()
            tokens, passes = tokens + num, passes + (num_passes or 0)
            seconds, seconds_with_prompt = seconds + (end - first) - (first - begin), seconds_with_prompt + end - first
        decode.append((tokens - len(rows)) / seconds)
        whole.append(tokens / seconds_with_prompt)
    return {
        "requests": len(rows),
        "new_tokens": tokens,
        "tokens_per_s": spread(decode),
        "tokens_per_s_with_prompts": spread(whole),
        "accept_length": tokens / passes if passes else None,
    }


def measure(answers: Answers, prompts: list[list[int]], options: argparse.Namespace, batch: int) -> dict[str, Any]:
    """B at a time: one warm-up and the repeats."""
    answers(prompts[: 2 * batch], 16, batch)
    speeds, tokens, passes = [], 0, None
    for _ in range(options.repeats):
        started = time.perf_counter()
        tokens, passes = answers(prompts, options.max_new_tokens, batch)
        speeds.append(tokens / (time.perf_counter() - started))
    return {
        "requests": len(prompts),
        "new_tokens": tokens,
        "tokens_per_s": spread(speeds),
        "accept_length": tokens / passes if passes else None,
    }


def open_vllm(options: argparse.Namespace) -> tuple[Answers, str]:
    """vLLM's engine, stepped here."""
    import vllm
    from vllm.sampling_params import RequestOutputKind

    speculation = {"method": "eagle3", "model": str(options.draft), "num_speculative_tokens": options.k}
    model = vllm.LLM(
        model=str(options.target),
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=max(options.batch),
        kv_cache_memory_bytes=8 << 30,
        gpu_memory_utilization=0.4,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config=speculation if options.arm == "eagle3" else None,
    )
    engine, numbers = model.llm_engine, itertools.count()

    def count(name: str) -> int:
        return sum(int(m.value) for m in model.get_metrics() if m.name == name and hasattr(m, "value"))

    def answers(prompts: list[list[int]], limit: int, batch: int) -> tuple[int, int | None]:
        how = vllm.SamplingParams(
            temperature=0.0, max_tokens=limit, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        waiting, running, tokens = list(reversed(prompts)), 0, 0
        drafted, kept = count("vllm:spec_decode_num_drafts"), count("vllm:spec_decode_num_accepted_tokens")
        while waiting or running:
            while waiting and running < batch:
                engine.add_request(str(next(numbers)), {"prompt_token_ids": waiting.pop()}, how)
                running += 1
            for output in engine.step():
                if output.finished:
                    running -= 1
                    tokens += len(output.outputs[0].token_ids)
        drafted = count("vllm:spec_decode_num_drafts") - drafted
        kept = count("vllm:spec_decode_num_accepted_tokens") - kept
        # So that tokens / passes is the accept length by vLLM's own counters: 1 + accepted / drafted.
        return tokens, round(tokens / (1 + kept / drafted)) if drafted else None

    return answers, vllm.__version__


def open_sglang(options: argparse.Namespace) -> tuple[Answers, str]:
    """SGLang's offline engine, through its event loop."""
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
        mem_fraction_static=0.4,
        max_total_tokens=131072,
        max_running_requests=max(options.batch),
        cuda_graph_max_bs_decode=max(options.batch),
        disable_radix_cache=True,
        **(speculation if options.arm == "eagle3" else {}),
    )

    async def one(ids: list[int], limit: int, gate: asyncio.Semaphore) -> tuple[int, int]:
        async with gate:
            how = {"temperature": 0.0, "max_new_tokens": limit}
            output = await engine.async_generate(input_ids=ids, sampling_params=how)
        return len(output["output_ids"]), int(output["meta_info"].get("spec_verify_ct") or 0)

    async def every(prompts: list[list[int]], limit: int, batch: int) -> list[tuple[int, int]]:
        gate = asyncio.Semaphore(batch)
        return await asyncio.gather(*(one(ids, limit, gate) for ids in prompts))

    def answers(prompts: list[list[int]], limit: int, batch: int) -> tuple[int, int | None]:
        counts = engine.loop.run_until_complete(every(prompts, limit, batch))
        return sum(tokens for tokens, _ in counts), sum(passes for _, passes in counts) or None

    return answers, sglang.__version__


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=["vllm", "sglang"])
    parser.add_argument("arm", choices=["plain", "eagle3"])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--single", type=Path, help="rows that are also answered one at a time")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("-k", type=int, default=3, help="drafts per verify pass")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lock", help="file that is locked while timing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
