"""Throughput of batched plain generation: tokens per second over a whole run, prompts included.

    python benchmarks/batch_generation.py --target smollm2-135m --device cuda --dtype bfloat16 --batch 320

Last line of stdout = one JSON object.
"""

import argparse
import json
import random
import time
from pathlib import Path

import torch

from eyas.cli.target_option import target_folder
from eyas.cli.terminal import Terminal
from eyas.decode.sampling import Sampling
from eyas.engine.batch import BatchGenerator, Request
from eyas.engine.batch_model import BatchLlama
from eyas.engine.llama_weights import read_llama
from eyas.engine.open_batch import BatchSettings, plan_for
from eyas.models.placement import place


def requests(num: int, new_tokens: int, vocab: int, temperature: float) -> list[Request]:
    """Random prompts of 20 - 200 tokens; answers of the full length, so that runs are comparable."""
    chance = random.Random(0)
    return [
        Request(
            id=str(i),
            prompt_ids=tuple(chance.randrange(vocab) for _ in range(chance.randint(20, 200))),
            max_new_tokens=new_tokens,
            sampling=Sampling(temperature=temperature, seed=i),
        )
        for i in range(num)
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch", type=int, default=320)
    parser.add_argument("--num", type=int, default=1280)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()
    talk, placement = Terminal(), place(args.dtype, args.device)
    folder: Path = target_folder(args.target, talk)
    weights = read_llama(folder, dtype=placement.dtype, device=placement.device)
    asked = requests(args.num, args.new_tokens, weights.head.shape[0], args.temperature)
    plan = plan_for(weights, asked, BatchSettings(max_batch=args.batch))
    model = BatchLlama(weights, plan.num_slots, plan.capacity)

    def run(some: list[Request]) -> float:
        started = time.perf_counter()
        num = sum(len(c.ids) for c in BatchGenerator(model, lambda ids: "", max_prefill_tokens=16384).run(some, talk))
        return num / (time.perf_counter() - started)

    run(asked[: plan.num_slots])  # warm-up
    speed = run(asked)
    print(json.dumps({**vars(args), "slots": plan.num_slots, "tokens_per_s": speed, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
