"""Adaptive depth beside plain and K = 3, with a trained and with a random draft; and what each depth costs on the 8B
shape.

python benchmarks/engine_adaptive.py --target FOLDER --draft FOLDER --prompts F.jsonl --out FOLDER
python benchmarks/engine_adaptive.py --drafts --shape-8b --most 3 --out FOLDER
python benchmarks/engine_adaptive.py --tiny --out FOLDER        # seconds on a CPU: shows that it runs

On a GPU rounds are captured; on a CPU they are the readable ones (fp32), timed by the clock of one thread where
--cpu-time is given, so that a busy machine disturbs less. Arms take turns on each prompt. Partial results are kept in
engine_adaptive.json.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eyas.cli.target_option import cache_folder
from eyas.contract.spec.target_spec import read_target
from eyas.decode.accept_length import pooled
from eyas.engine.adaptive import AdaptiveDepth
from eyas.engine.captured.adaptive_rounds import AdaptiveRounds
from eyas.engine.captured.captured_engine import FastSettings
from eyas.engine.captured.open_captured import open_path, triton_ops
from eyas.engine.captured.workspace import key_value_cache
from eyas.engine.eagle_draft import FusedDraft
from eyas.engine.engine import Engine, Limits
from eyas.engine.generation import Generation
from eyas.engine.llama.llama_target import LlamaTarget
from eyas.engine.llama.llama_weights import read_llama
from eyas.engine.llama.native import load_kernels
from eyas.models.chat_prompt import stop_ids_of
from eyas.models.draft import Eagle3Draft, required_boundaries
from eyas.models.load_draft import load_draft
from eyas.models.placement import Placement
from eyas.talk import Silent

FIXED = 3


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of one kind of text."""

    set: str
    ids: tuple[int, ...]


def main() -> None:
    args = parsed()
    document: dict[str, Any] = {"schema": "eyas.benchmark.engine-adaptive/1", "machine": machine(args)}
    args.out.mkdir(parents=True, exist_ok=True)
    for kind in args.drafts:
        engine, prompts, stop_ids = tiny(kind) if args.tiny else real(args, kind)
        document[kind] = arms(engine, prompts, Limits(max_new_tokens=args.max_new_tokens, stop_ids=stop_ids), args)
        keep(document, args.out)
        del engine
    if args.shape_8b:
        document["llama8b_shape"] = shape_8b(args)
        keep(document, args.out)
    print(table(document))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, help="Hugging Face folder of a Llama")
    parser.add_argument("--draft", type=Path, help="an EAGLE-3 draft of it")
    parser.add_argument("--prompts", type=Path, help="rows with `set` and `prompt_ids`")
    parser.add_argument("--per-set", type=int, default=12, help="prompts of each kind of text")
    parser.add_argument("--drafts", nargs="*", default=["trained", "random"])
    parser.add_argument("--most", type=int, default=5, help="deepest draft")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cpu-time", action="store_true", help="CPU: one thread, its own time")
    parser.add_argument("--shape-8b", action="store_true", help="also the cost of each depth on the 8B shape")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.tiny:
        args.device, args.most, args.repeats, args.max_new_tokens = "cpu", 3, 2, 40
    return args


def machine(args: argparse.Namespace) -> dict[str, Any]:
    name = torch.cuda.get_device_name(0) if args.device == "cuda" else platform.processor()
    return {"device": name, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "most": args.most}


def keep(document: dict[str, Any], out: Path) -> None:
    (out / "engine_adaptive.json").write_text(json.dumps(document, indent=1) + "\n")


# ---- engines


def real(args: argparse.Namespace, kind: str) -> tuple[Engine, list[Prompt], frozenset[int]]:
    is_cuda = args.device == "cuda"
    placement = Placement(torch.bfloat16 if is_cuda else torch.float32, torch.device(args.device))
    weights = read_llama(args.target, dtype=placement.dtype, device=placement.device)
    draft = load_draft(
        args.draft,
        placement,
        target_spec=read_target(args.target),
        target_embedding=weights.embedding,
        target_head=weights.head,
    )
    if kind == "random":
        randomise(draft)
    kernels = None if is_cuda else load_kernels(cache_folder(), Silent())
    boundaries = required_boundaries(draft)
    fast = open_path(weights, draft, tuple(boundaries), "auto", Silent())
    engine = Engine(
        LlamaTarget(weights, kernels=kernels, num_threads=1),
        FusedDraft(draft, boundaries, kernels=kernels, num_threads=1),
        fast=fast,
        clock=time.process_time if args.cpu_time else time.perf_counter,
    )
    rows = [json.loads(line) for line in args.prompts.read_text().splitlines()]
    taken: Counter[str] = Counter()
    prompts = []
    for row in rows:
        taken[row["set"]] += 1
        if taken[row["set"]] <= args.per_set:
            prompts.append(Prompt(row["set"], tuple(row["prompt_ids"])))
    return engine, prompts, stop_ids_of(args.target)


def randomise(draft: Eagle3Draft) -> None:
    """Weights of the same size without meaning; the target's embedding, where it is shared, stays."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in draft.named_parameters():
            if parameter.dim() > 1 and not name.startswith("embed"):
                parameter.copy_(torch.randn_like(parameter) * parameter.float().std())


def tiny(kind: str) -> tuple[Engine, list[Prompt], frozenset[int]]:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
    from tiny_captured import BOUNDARIES, tiny_module, tiny_weights

    weights = tiny_weights()
    draft = tiny_module(weights, seed=1 if kind == "trained" else 2)
    fast = open_path(weights, draft, BOUNDARIES, "uncaptured", Silent())
    prompts = [Prompt("tiny", (3, 1, 2)), Prompt("tiny", (0, 4, 4, 1))]
    return Engine(LlamaTarget(weights), FusedDraft(draft, BOUNDARIES), fast=fast), prompts, frozenset()


# ---- arms


def arms(engine: Engine, prompts: Sequence[Prompt], limits: Limits, args: argparse.Namespace) -> dict[str, Any]:
    if args.cpu_time:
        torch.set_num_threads(1)
    typical = sorted(prompts, key=lambda p: len(p.ids))[len(prompts) // 2].ids
    adaptive = engine.adaptive(typical, args.most)
    costs = [1e3 * s for s in adaptive.costs.round_s]
    print(f"ms per round at depth 0 …: {[round(c, 3) for c in costs]}", file=sys.stderr, flush=True)
    names = ("plain", f"k={FIXED}", "auto")
    texts: dict[str, list[list[Generation]]] = {name: [] for name in names}
    for name in names:  # graphs are captured, buffers made
        answer(engine, prompts[0], limits, name, None)
    for repeat in range(args.repeats):
        for name in names:
            texts[name].append([])
        for i, prompt in enumerate(prompts):
            for j in range(len(names)):
                name = names[(i + j + repeat) % len(names)]
                texts[name][-1].append(answer(engine, prompt, limits, name, adaptive))
        print(f"repeat {repeat + 1} of {args.repeats} done", file=sys.stderr, flush=True)
    plain = texts["plain"]
    return {
        "cost_ms": costs,
        "arms": {name: figures(prompts, some, plain) for name, some in texts.items()},
        "differences": {name: differences(engine, prompts, plain[0], some[0]) for name, some in texts.items()},
    }


def answer(engine: Engine, prompt: Prompt, limits: Limits, name: str, adaptive: AdaptiveDepth | None) -> Generation:
    if name == "auto" and adaptive is not None:
        return engine.generate(prompt.ids, limits, adaptive=adaptive)
    return engine.generate(prompt.ids, limits, num_draft_tokens=FIXED if name == f"k={FIXED}" else 0)


def figures(
    prompts: Sequence[Prompt], texts: Sequence[Sequence[Generation]], plain: Sequence[Sequence[Generation]]
) -> dict[str, Any]:
    """Per kind of text and on all: speeds of each repeat, and the ratio to plain with and without the prompt."""
    found = {}
    for name in ("all", *sorted({p.set for p in prompts})):
        chosen = [i for i, p in enumerate(prompts) if name in ("all", p.set)]
        speeds = [rate([repeat[i] for i in chosen]) for repeat in texts]
        base = [rate([repeat[i] for i in chosen]) for repeat in plain]
        counted = [text for repeat in texts for i, text in enumerate(repeat) if i in chosen]
        counts = pooled([t.acceptance for t in counted], counted[0].num_draft_tokens)
        found[name] = {
            "tok_s": [round(s, 1) for s, _ in speeds],
            "tok_s_with_prompt": [round(w, 1) for _, w in speeds],
            "to_plain": statistics.median(s / b for (s, _), (b, _) in zip(speeds, base, strict=True)),
            "to_plain_with_prompt": statistics.median(w / b for (_, w), (_, b) in zip(speeds, base, strict=True)),
            "accept_length": counts.accept_length,
            "rounds": counts.rounds,
            "depths": dict(sorted(Counter(d for t in counted for d in t.drafted).items())),
        }
    return found


def rate(texts: Sequence[Generation]) -> tuple[float, float]:
    """Tokens per second after the prompt's own, and with the prompt."""
    num, decode_s = sum(len(t.ids) for t in texts), sum(t.decode_s for t in texts)
    return (num - len(texts)) / decode_s, num / (decode_s + sum(t.prefill_s for t in texts))


def differences(
    engine: Engine, prompts: Sequence[Prompt], plain: Sequence[Generation], other: Sequence[Generation]
) -> dict[str, Any]:
    """Texts that differ from plain's, and the target's logit gap between the two tokens at the first difference."""
    gaps = []
    for prompt, a, b in zip(prompts, plain, other, strict=True):
        at = next((i for i, (x, y) in enumerate(zip(a.ids, b.ids, strict=False)) if x != y), None)
        if at is not None:
            ids = [*prompt.ids, *a.ids[:at]]
            engine.target.start(len(ids) + 1, ())
            logits = engine.target.prefill(ids).logits[0].float()
            gaps.append(abs(float(logits[a.ids[at]] - logits[b.ids[at]])))
    return {"texts": len(plain), "different": len(gaps), "largest_gap": max(gaps, default=0.0)}


# ---- the shape of Llama-3.1-8B


def shape_8b(args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a round of each depth, and what a useless draft costs (random weights, 300 positions)."""
    rounds = rounds_8b(args)
    costs = rounds.measure_costs(300)
    adaptive = AdaptiveDepth(costs)
    text = rounds.generate(list(range(5, 205)), Limits(max_new_tokens=600), adaptive)
    plain_s = costs.plain_s * (len(text.ids) - 1)
    return {
        "cost_ms": [1e3 * s for s in costs.round_s],
        "useless_draft_to_plain": plain_s / text.decode_s,
        "depths": dict(sorted(Counter(text.drafted).items())),
        "accept_length": text.acceptance.accept_length,
    }


def rounds_8b(args: argparse.Namespace, **shape: Any) -> AdaptiveRounds:
    from engine_h200 import MAX_LENGTH, random_llama8b

    target, draft = random_llama8b(**shape)
    caches = key_value_cache(target, len(target.layers), MAX_LENGTH), key_value_cache(draft, 1, MAX_LENGTH)
    return AdaptiveRounds(
        triton_ops(torch.device("cuda")), target, draft,
        most=args.most, max_length=MAX_LENGTH, caches=caches, settings=FastSettings(),
    )  # fmt: skip


def table(document: dict[str, Any]) -> str:
    lines = ["| draft | text | arm | tok/s (repeats) | to plain | with prompt | accept length | depths |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for kind in ("trained", "random"):
        for arm, sets in document.get(kind, {}).get("arms", {}).items():
            lines += [
                f"| {kind} | {name} | {arm} | {' '.join(map(str, f['tok_s']))} | {f['to_plain']:.3f}"
                f" | {f['to_plain_with_prompt']:.3f} | {f['accept_length']:.3f} | {f['depths']} |"
                for name, f in sets.items()
            ]
        if kind in document:
            lines.append(f"\n{kind}: {json.dumps(document[kind]['differences'])}\n")
    if "llama8b_shape" in document:
        lines.append(json.dumps(document["llama8b_shape"]))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
