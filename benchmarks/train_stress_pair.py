"""Build the stress pair: a tiny target and a tiny draft of which every part matters (tests/fixtures/stress_pair).

    python benchmarks/train_stress_pair.py target --out WORK        # minutes of one core
    python benchmarks/train_stress_pair.py draft --steps 215 --out WORK
    python benchmarks/train_stress_pair.py draft-shared --steps 450 --out WORK   # the target's embedding, for SGLang

The target learns the language of tests/support/stress_language.py. The draft starts with norms and an embedding far
from neutral, and `eyas train` trains it until about half of its drafts are accepted: then every damage shows.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from stress_language import LAG, SPECIAL, VOCAB, Language
from tiny_tokenizer import word_tokenizer

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 7,  # fewer give default boundaries that occur twice
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def train_target(out: Path, steps: int, seed: int) -> None:
    """Train and save the target in bfloat16, with its tokenizer."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB, max_position_embeddings=512, rope_theta=1e5, rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2, pad_token_id=0, initializer_range=0.08, **SIZES,
    )  # fmt: skip
    model, language, draw = LlamaForCausalLM(config), Language(), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps, pct_start=0.1)
    began = time.monotonic()
    for step in range(steps):
        ids, is_ruled = language.texts(32, 144, draw)
        logits = model(ids).logits[:, :-1]
        wanted = ids[:, 1:][is_ruled[:, 1:]]
        loss = torch.nn.functional.cross_entropy(logits[is_ruled[:, 1:]], wanted)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 25 == 24:
            right = (logits[is_ruled[:, 1:]].argmax(-1) == wanted).float().mean()
            print(f"{step + 1} loss {loss.item():.4f} right {right:.4f} {time.monotonic() - began:.0f} s", flush=True)
    model.generation_config.eos_token_id = 2
    model.to(torch.bfloat16).save_pretrained(out / "target")
    word_tokenizer(VOCAB).save_pretrained(out / "target")


def train_draft(out: Path, embedding: str, options: list[str]) -> None:
    """The target answers prompts of its language; the draft learns them from norms and an embedding of its own."""
    name = "draft" if embedding == "own" else "draft-shared"
    target, rows, start = out / "target", out / "rows", out / f"start-{name}"
    if not rows.exists():
        draw, language, words = torch.Generator().manual_seed(5), Language(), []
        for _ in range(20):
            ids, is_ruled = language.texts(100, 2 * LAG + 5, draw)
            prompts = ids[:, 2 : int((~is_ruled[0]).sum()) - 2].tolist()
            words += [" ".join(f"w{i - SPECIAL}" for i in prompt) for prompt in prompts]
        (out / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in words))
        prepare = [
            "--data",
            str(out / "prompts.jsonl"),
            "--regenerate",
            "--answer-temperature",
            "0",
            "--held-out",
            "24",
        ]
        eyas("prepare", "--target", target, *prepare, "--max-answer-tokens", "96", "--out", rows)
    if not start.exists():
        shape = ["--embedding", embedding, "--draft-vocab-size", "96", "--aux-boundaries", "2", "4", "6"]
        eyas("train", "--target", target, "--data", rows, "--out", start, *shape, "--init-only")
        spread(start / "model.safetensors")
    words = ["--init-from", start, "--held-out-draft-tokens", "5", "--batch-tokens", "1024", "--lr", "0.004", *options]
    eyas("train", "--target", target, "--data", rows, "--out", out / name, *words)


def spread(path: Path) -> None:
    """Norm weights near 0.3 or near 2, and an embedding unlike the target's."""
    tensors, draw = load_file(path), torch.Generator().manual_seed(7)
    for name, tensor in tensors.items():
        if "norm" in name:
            is_high = torch.rand(tensor.shape, generator=draw) < 0.5
            jitter = 0.2 * torch.rand(tensor.shape, generator=draw)
            tensor.copy_(torch.where(is_high, 2.0 - jitter, 0.3 + jitter))
        if "embed" in name:
            tensor.copy_(torch.randn(tensor.shape, generator=draw) * tensor.float().std())
    save_file(tensors, path, metadata={"format": "pt"})


def eyas(*words: object) -> None:
    """Run a command of eyas in this interpreter."""
    subprocess.run([sys.executable, "-m", "eyas", *map(str, words)], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["target", "draft", "draft-shared"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=350)
    parser.add_argument("--seed", type=int, default=0)
    arguments, others = parser.parse_known_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.part == "target":
        train_target(arguments.out, arguments.steps, arguments.seed)
    else:
        embedding = "own" if arguments.part == "draft" else "target"
        train_draft(arguments.out, embedding, ["--steps", str(arguments.steps), "--seed", str(arguments.seed), *others])
