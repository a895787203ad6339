"""Single-stream speed of the captured round on one GPU: our arms alone, beside the floor.

python benchmarks/engine_h200.py --target FOLDER --draft FOLDER --prompts F.jsonl --out FOLDER

Arms: SmolLM2 (or any Llama folder) plain and with K = 1 … 5 drafts on real prompts (`prompt_ids` rows); the shape of
Llama-3.1-8B with random weights, plain, with nothing accepted, and with acceptance simulated (marked so). Writes
engine_h200.json and a table in engine_h200.md. No other engine is started here.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from eyas.contract.spec.draft_spec import DraftSpec, Rope
from eyas.decode.accept_length import pooled
from eyas.engine.captured.captured_engine import FastEngine
from eyas.engine.captured.captured_round import new_round
from eyas.engine.captured.captured_weights import FastDraft, FastTarget, fast_draft, fast_target
from eyas.engine.captured.open_captured import triton_ops
from eyas.engine.captured.prompt_pass import prompt_pass
from eyas.engine.captured.tiles import Tile, TileChoice, Way
from eyas.engine.eagle_draft import FusedDraft
from eyas.engine.engine import Engine, Limits
from eyas.engine.generation import Generation
from eyas.engine.llama.llama_target import LlamaTarget
from eyas.engine.llama.llama_weights import BlockWeights, LlamaShape, LlamaWeights, read_llama
from eyas.models.draft import Eagle3Draft
from eyas.models.load_draft import load_draft
from eyas.models.placement import Placement

BOUNDARIES = (2, 15, 27)
MAX_LENGTH = 1024
# Accepted drafts per round, in turn: accept length 2.67 with K = 3, as a draft of middling quality has.
SIMULATED = (3, 2, 1, 2, 1, 1)


def main() -> None:
    args = parsed()
    tiles = tiles_of(args.tiles) if args.tiles else TileChoice()
    document: dict[str, Any] = {"schema": "eyas.benchmark.engine-h200/1", "machine": machine(), "ceilings": ceilings()}
    print(json.dumps(document), flush=True)
    if args.target:
        document["smollm2"] = real_arms(args, tiles)
    if not args.skip_8b:
        document["llama8b_shape"] = shape_arms(tiles)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "engine_h200.json").write_text(json.dumps(document, indent=1) + "\n")
    print(table(document))
    (args.out / "engine_h200.md").write_text(table(document))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, help="Hugging Face folder of a Llama")
    parser.add_argument("--draft", type=Path, help="an EAGLE-3 draft of it")
    parser.add_argument("--prompts", type=Path, help="rows with `set` and `prompt_ids`")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--depths", type=int, nargs="*", default=[0, 1, 2, 3, 4, 5])
    parser.add_argument("--readable-prompts", type=int, default=4, help="prompts compared with the readable round")
    parser.add_argument("--skip-8b", action="store_true")
    parser.add_argument("--tiles", type=Path, help="measured tiles to use instead of the package's")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def machine() -> dict[str, Any]:
    import triton

    props = torch.cuda.get_device_properties(0)
    return {
        "gpu": props.name,
        "multiprocessors": props.multi_processor_count,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def tiles_of(path: Path) -> TileChoice:
    names = ("block_out", "num_warps", "block_in", "stages", "programs")
    fixed = {}
    for key, (way, *sizes) in json.loads(path.read_text()).items():
        kind, num_out, num_in, rows = key.split(",")
        tile = Tile(way=Way(way), **dict(zip(names, sizes, strict=True)))
        for num in [int(rows)] if int(rows) == 1 else range(2, 9):
            fixed[(kind, int(num_out), int(num_in), num)] = tile
    return TileChoice(fixed=fixed)


def engine_of(
    tiles: TileChoice,
    target: FastTarget,
    draft: FastDraft | None,
    depth: int,
    *,
    weights: LlamaWeights | None = None,
    is_simulated: bool = False,
) -> FastEngine:
    round_ = new_round(
        triton_ops(torch.device("cuda"), tiles),
        target,
        draft if depth else None,
        num_draft_tokens=depth,
        max_length=MAX_LENGTH,
        is_simulated=is_simulated,
    )
    prompt = None
    if weights is not None:  # as `open_path` reads prompts
        prompt = prompt_pass(weights, round_.cache, target.aux_boundaries, captures=True)
    return FastEngine(round_, prompt=prompt)


# ---- ceilings


def ceilings() -> dict[str, float]:
    """Measured TB/s of a large copy (bytes read plus written) and of a large read."""
    x = torch.randn(2**30, device="cuda")
    y = torch.empty_like(x)
    num_bytes = x.numel() * 4
    return {
        "copy_tb_s": 2 * num_bytes / median_ms(lambda: y.copy_(x)) / 1e9,
        "read_tb_s": num_bytes / median_ms(lambda: x.sum()) / 1e9,
    }


def median_ms(call: Callable[[], object], repeats: int = 10) -> float:
    call()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def streamed_bytes(target: FastTarget) -> int:
    """Bytes that one pass must read: every weight but the embedding table (unless it is the head)."""
    layers = (t for layer in target.layers for t in (layer.qkv, layer.out, layer.gate_up, layer.down))
    return sum(t.numel() * t.element_size() for t in (*layers, target.head))


# ---- a real target on real prompts


def real_models(args: argparse.Namespace) -> tuple[FastTarget, FastDraft, LlamaWeights, Eagle3Draft]:
    device = torch.device("cuda")
    weights = read_llama(args.target, dtype=torch.bfloat16, device=device)
    target = fast_target(weights, max_length=MAX_LENGTH, aux_boundaries=BOUNDARIES)
    module = load_draft(args.draft, Placement(torch.bfloat16, device), target_embedding=weights.embedding)
    return target, fast_draft(module, target), weights, module


def real_arms(args: argparse.Namespace, tiles: TileChoice) -> dict[str, Any]:
    target, draft, weights, module = real_models(args)
    rows = [json.loads(line) for line in args.prompts.read_text().splitlines()]
    ends = json.loads((args.target / "config.json").read_text())["eos_token_id"]
    limits = Limits(max_new_tokens=args.max_new_tokens, stop_ids=frozenset([ends] if isinstance(ends, int) else ends))
    arms: list[dict[str, Any]] = []
    plain_texts: list[list[int]] = []
    for depth in args.depths:
        arm, texts = measured(engine_of(tiles, target, draft, depth, weights=weights), rows, limits, args.repeats)
        plain_texts = plain_texts or texts
        arm |= {"num_draft_tokens": depth, "speedup": arm["tok_s"] / (arms[0] if arms else arm)["tok_s"]}
        arm["differences_from_plain"] = differences(weights, rows, plain_texts, texts)
        arms.append(arm)
        print(json.dumps(arm), flush=True)
    rows = rows[:: max(1, len(rows) // max(1, args.readable_prompts))][: args.readable_prompts]
    readable = []
    for depth in (0, 3):
        slow = Engine(LlamaTarget(weights), FusedDraft(module, BOUNDARIES))
        fast = engine_of(tiles, target, draft, depth, weights=weights)
        readable.append({"num_draft_tokens": depth, **compared(weights, slow, fast, rows, limits)})
        print(json.dumps(readable[-1]), flush=True)
    return {"streamed_bytes": streamed_bytes(target), "arms": arms, "against_readable": readable}


def measured(
    engine: FastEngine, rows: Sequence[dict[str, Any]], limits: Limits, repeats: int
) -> tuple[dict[str, Any], list[list[int]]]:
    """Decode rate (the prompt's token and its time excluded), and the rate with the prompts' time."""
    for row in rows:  # every size of prompt once: its pass is captured
        engine.start(row["prompt_ids"])
    rates, whole, prompts, texts = [], [], [], [Generation(num_draft_tokens=0)]
    for _ in range(repeats):
        texts = [engine.generate(row["prompt_ids"], limits) for row in rows]
        num = sum(len(text.ids) for text in texts)
        decode_s, prefill_s = sum(t.decode_s for t in texts), sum(t.prefill_s for t in texts)
        rates.append((num - len(rows)) / decode_s)
        whole.append(num / (decode_s + prefill_s))
        prompts += [1e3 * t.prefill_s for t in texts]
    depth = engine.round.num_draft_tokens
    counts = [text.acceptance for text in texts]
    by_set = {
        name: pooled([c for c, r in zip(counts, rows, strict=True) if r["set"] == name], depth).accept_length
        for name in sorted({row["set"] for row in rows})
    }
    arm = {
        "tok_s": statistics.median(rates),
        "tok_s_spread": [min(rates), max(rates)],
        "tok_s_with_prompt": statistics.median(whole),
        "prompt_ms": {"median": statistics.median(prompts), "minimum": min(prompts), "maximum": max(prompts)},
        "rounds_s": statistics.median(rates) / pooled(counts, depth).accept_length,
        "accept_length": pooled(counts, depth).accept_length,
        "per_position": pooled(counts, depth).per_position,
        "accept_length_by_set": by_set,
        "new_tokens": sum(len(text.ids) for text in texts),
        "repeats": repeats,
    }
    return arm, [text.ids for text in texts]


def differences(
    weights: LlamaWeights, rows: Sequence[dict[str, Any]], expected: list[list[int]], got: list[list[int]]
) -> dict[str, Any]:
    """Texts that differ, and the readable target's logit gap between the two tokens at the first difference."""
    gaps = []
    for row, a, b in zip(rows, expected, got, strict=True):
        at = next((i for i, (p, q) in enumerate(zip(a, b, strict=False)) if p != q), None)
        if at is not None:
            runner = LlamaTarget(weights)
            runner.start(MAX_LENGTH, ())
            logits = runner.prefill([*row["prompt_ids"], *a[:at]]).logits[0].float()
            gaps.append(abs(float(logits[a[at]] - logits[b[at]])))
    return {"texts": len(rows), "different": len(gaps), "largest_gap": max(gaps, default=0.0)}


def compared(
    weights: LlamaWeights, slow: Engine, fast: FastEngine, rows: Sequence[dict[str, Any]], limits: Limits
) -> dict[str, Any]:
    """The readable round on the same prompts: equal ids and acceptances, or the gap at the first difference."""
    depth = fast.round.num_draft_tokens
    expected = [slow.generate(row["prompt_ids"], limits, num_draft_tokens=depth) for row in rows]
    got = [fast.generate(row["prompt_ids"], limits) for row in rows]
    same = sum(e.accepted == g.accepted for e, g in zip(expected, got, strict=True))
    found = differences(weights, rows, [e.ids for e in expected], [g.ids for g in got])
    return {"equal_acceptances": same, **found}


# ---- the shape of Llama-3.1-8B, random weights


def shape_arms(tiles: TileChoice) -> dict[str, Any]:
    torch.manual_seed(0)
    target, draft = random_llama8b()
    floor = streamed_bytes(target)
    plain_ms = round_ms(tiles, target, None, 0, ())
    nothing_ms = round_ms(tiles, target, draft, 3, (0,))
    simulated_ms = round_ms(tiles, target, draft, 3, SIMULATED)
    length = 1 + sum(SIMULATED) / len(SIMULATED)
    speedup = plain_ms[0] / simulated_ms[0] * length
    return {
        "streamed_bytes": floor,
        "plain_ms": plain_ms,
        "plain_tok_s": 1e3 / plain_ms[0],
        "round_k3_nothing_accepted_ms": nothing_ms,
        "round_k3_simulated_ms": simulated_ms,
        "simulated_accept_length": length,
        "simulated_speedup": speedup,
        "speedup_over_accept_length": speedup / length,
    }


def random_llama8b(num_layers: int = 32, aux_boundaries: tuple[int, ...] = (2, 16, 29)) -> tuple[FastTarget, FastDraft]:
    hidden, inner, heads, kv, width, vocab, offered = 4096, 14336, 32, 8, 128, 128256, 32000
    tensors = draw(torch.device("cuda"))
    shape = LlamaShape(
        hidden=hidden, in_width=hidden, num_heads=heads, num_kv_heads=kv, head_dim=width, rotary_dim=width,
        intermediate=inner, eps=1e-5,
    )  # fmt: skip

    def block() -> BlockWeights:
        return BlockWeights(
            input_norm=next(tensors)(hidden),
            qkv=next(tensors)((heads + 2 * kv) * width, hidden),
            qkv_bias=None,
            q_norm=None,
            k_norm=None,
            o=next(tensors)(hidden, heads * width),
            post_norm=next(tensors)(hidden),
            gate_up=next(tensors)(2 * inner, hidden),
            down=next(tensors)(hidden, inner),
        )

    weights = LlamaWeights(
        shape=shape,
        embedding=next(tensors)(vocab, hidden),
        blocks=tuple(block() for _ in range(num_layers)),
        norm=next(tensors)(hidden),
        head=next(tensors)(vocab, hidden),
        inverse_frequencies=1 / 5e5 ** (torch.arange(0, width, 2) / width),
        rope_scale=1.0,
    )
    target = fast_target(weights, max_length=MAX_LENGTH, aux_boundaries=aux_boundaries)
    spec = DraftSpec(
        hidden_size=hidden, target_hidden_size=hidden, intermediate_size=inner, num_heads=heads, num_kv_heads=kv,
        head_dim=width, vocab_size=vocab, draft_vocab_size=offered, rms_norm_eps=1e-5, rope=Rope(theta=5e5),
    )  # fmt: skip
    with torch.device("cuda"):
        module = Eagle3Draft(spec, target_embedding=weights.embedding).bfloat16()
    module.set_vocab_map(torch.arange(offered, device="cuda"))
    return target, fast_draft(module, target)


def draw(device: torch.device) -> Iterator[Callable[..., torch.Tensor]]:
    def tensor(*shape: int) -> torch.Tensor:
        scale = 1.0 if len(shape) == 1 else shape[-1] ** -0.5
        return torch.randn(*shape, device=device, dtype=torch.bfloat16) * scale

    while True:
        yield tensor


def round_ms(
    tiles: TileChoice, target: FastTarget, draft: FastDraft | None, depth: int, accepted: Sequence[int]
) -> tuple[float, float, float]:
    """Median, least and most of 5 runs of 60 rounds launched back to back from position 300 on."""
    engine = engine_of(tiles, target, draft, depth, is_simulated=bool(accepted))
    round_ = engine.round
    for i in range(len(round_.state.simulated) if accepted else 0):
        round_.state.simulated[i] = accepted[i % len(accepted)]
    times = []
    for _ in range(6):
        round_.state.numbers.copy_(torch.tensor([300, 299, 0, 0, 0, 0], dtype=torch.int32))
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        records = engine.rounds()
        start.record()
        for _ in range(60):
            next(records)
        end.record()
        torch.cuda.synchronize()
        # The reader stays `lookahead` launches behind what was launched.
        times.append(start.elapsed_time(end) / (60 + engine.settings.lookahead - 1))
    times = sorted(times[1:])
    return statistics.median(times), times[0], times[-1]


def table(document: dict[str, Any]) -> str:
    lines = ["| arm | tok/s | spread | rounds/s | accept length | speed-up | differ from plain (largest logit gap) |"]
    lines.append("|---|---|---|---|---|---|---|")
    for arm in document.get("smollm2", {}).get("arms", []):
        differ = arm["differences_from_plain"]
        lines.append(
            f"| SmolLM2 K={arm['num_draft_tokens']} | {arm['tok_s']:.0f} | {arm['tok_s_spread'][0]:.0f}–"
            f"{arm['tok_s_spread'][1]:.0f} | {arm['rounds_s']:.0f} | {arm['accept_length']:.3f} | {arm['speedup']:.3f}"
            f" | {differ['different']} of {differ['texts']} ({differ['largest_gap']:.3f}) |"
        )
    shape = document.get("llama8b_shape")
    if shape:
        lines += ["", json.dumps(shape)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
