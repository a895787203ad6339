"""Training from stored states on one GPU: is the trainer kept busy, and does the draft learn what it does live?

    python benchmarks/states_h200.py speed --out states.json
    python benchmarks/states_h200.py drafts --target smollm2-135m --data talks.jsonl.xz --judge answers.jsonl

speed     the Llama-3.1-8B shape: a store of random bf16 states is written (--rows rows of --seq tokens); the trainer
          reads it through `StoreFetcher` and `FedStates` as `eyas train --hidden-states` does; beside it the same
          trainer with the states of one step in memory (its ceiling), both in turns. Also reading alone.
drafts    a target's rows: a draft trained live, from a store in bf16 and from one in fp8, with the same options; the
          accept length of each by `eyas eval` on --judge. (From engines and by streaming: capture_h200.py.)

Nothing is downloaded. --tiny --device cpu tries `speed` in seconds. Each result is a JSON line, appended to --out.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
import train_h200 as base


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["speed", "drafts"])
    parser.add_argument("--shape", choices=list(base.SHAPES), default="llama8b")
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--tokens-per-step", type=int, default=8192)
    parser.add_argument("--rows", type=int, default=128, help="of the store: 8.6 GB at the 8B shape")
    parser.add_argument("--passes", type=int, default=3, help="over the store, in turns with the ceiling")
    parser.add_argument("--ttt-steps", type=int, default=7)
    parser.add_argument("--draft-vocab", type=int, default=0)
    parser.add_argument("--read-ahead-gb", type=float, default=4.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--folder", type=Path, default=None, help="for the stores; by default a temporary one")
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--data", type=Path, help="conversations of the target, for `eyas prepare`")
    parser.add_argument("--judge", type=Path, help="its recorded answers, for `eyas eval`")
    parser.add_argument("--tokens", type=int, default=2_000_000)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    if args.tiny:
        args.seq, args.tokens_per_step, args.rows, args.passes = 24, 72, 9, 1
    return args


def main() -> None:
    args = parsed()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        records = (speed if args.mode == "speed" else drafts)(args, Path(folder))
        for record in records:
            record |= {"machine": base.machine(args.device), "argv": sys.argv[1:]}
            print(json.dumps(record), flush=True)
            if args.out is not None:
                with args.out.open("a") as file:
                    file.write(json.dumps(record) + "\n")


# ---- speed


def speed(args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    from eyas.models.target import FrozenParts
    from eyas.store import StoreReader
    from eyas.talk import Silent
    from eyas.train.config import TrainConfig
    from eyas.train.feed.fed_states import FedStates, Kept
    from eyas.train.feed.fetchers import StoreFetcher
    from eyas.train.optimise.teaching import Teaching
    from eyas.train.optimise.trainer import Trainer

    shape, dtype, device = base.shape_of(args), base.dtype_of(args), torch.device(args.device)
    torch.manual_seed(0)
    embedding, head = (torch.randn(shape.vocab, shape.hidden, device=device, dtype=dtype) * 0.02 for _ in range(2))
    parts = FrozenParts(
        name=args.shape, num_layers=shape.layers, embedding=embedding, head=head, final_norm=lambda x: x
    )
    draft = base.make_draft(args, SimpleNamespace(parts=parts, frozen=parts, device=device))
    store, wrote_s = write_store(args, folder / "store", shape)
    base.say(f"store of {store.num_bytes / 1e9:.1f} GB written in {wrote_s:.0f} s")
    rows = store.rows
    batches = [
        rows[at : at + args.tokens_per_step // args.seq] for at in range(0, len(rows), args.tokens_per_step // args.seq)
    ]
    reader = StoreReader.open(store.folder)
    places = [reader.find(key) for key in store.keys]
    kept = Kept(dtype="bfloat16", boundaries=reader.about.boundaries, is_normed=True)
    feed = FedStates(
        [StoreFetcher(reader, places)], kept, shape.boundaries, parts, lambda number: args.seq,
        int(args.read_ahead_gb * 1e9), Silent(),
    )  # fmt: skip
    config = TrainConfig(ttt_steps=args.ttt_steps, micro_batch_tokens=args.tokens_per_step, aux_boundaries=None)
    trainer = Trainer(
        draft, Teaching(parts=parts, states=feed, held_out=None, feed=feed), config, lr=1e-4, num_steps=10_000
    )
    for step in range(2):  # kernels are compiled
        trainer.train_step(batches[step % len(batches)], step)
    from eyas.train.rows.packing import pack

    in_memory = [feed(pack(batches[0], args.ttt_steps, device), shape.boundaries)]
    records = []
    for number in range(args.passes):
        ceiling = timed(args, trainer, batches, None, replace(trainer.teaching, states=memory(in_memory), feed=None))
        fed = timed(args, trainer, batches, feed, trainer.teaching)
        records.append({"mode": "speed", "pass": number, "store_gb": store.num_bytes / 1e9, "wrote_s": wrote_s,
                        "in_memory_tokens_per_s": ceiling["tokens_per_s"], **fed,
                        "share_of_ceiling": fed["tokens_per_s"] / ceiling["tokens_per_s"]})  # fmt: skip
        base.say(json.dumps(records[-1]))
    records.append({"mode": "reading alone", **reading(args, feed, rows)})
    return records


def memory(states: list[Any]) -> Any:
    turn = cycle(states)

    def source(rows: Any, boundaries: Any) -> Any:
        return next(turn)

    source.pads = False  # type: ignore[attr-defined]
    return source


def timed(args: argparse.Namespace, trainer: Any, batches: list[Any], feed: Any, teaching: Any) -> dict[str, Any]:
    """All batches once; the clock begins with an empty read-ahead."""
    from contextlib import nullcontext

    was, trainer.teaching = trainer.teaching, teaching
    trainer.data_wait.take()
    synchronize(args)
    begin, pending = time.perf_counter(), []
    with feed.ahead(trainer.order_of(batches), lambda: False) if feed else nullcontext() as figures:
        for step, rows in enumerate(batches):
            pending.append(trainer.start_step(rows, step))
        synchronize(args)
        seconds = time.perf_counter() - begin
        report = feed.report(figures).as_document() if feed else {}
    trainer.teaching = was
    base.losses_of(pending)
    tokens = sum(len(row.token_ids) for rows in batches for row in rows)
    return {
        "tokens_per_s": tokens / seconds,
        "data_wait_share": trainer.data_wait.take() / seconds,
        "fed": report,
    }


def reading(args: argparse.Namespace, feed: Any, rows: list[Any]) -> dict[str, Any]:
    begin = time.perf_counter()
    with feed.ahead((row.number for row in rows), lambda: False) as figures:
        for row in rows:
            feed._take([row.number])
        synchronize(args)
        seconds = time.perf_counter() - begin
        gb = figures.num_bytes / 1e9
    return {"gb_per_s": gb / seconds, "tokens_per_s": sum(len(row.token_ids) for row in rows) / seconds}


def synchronize(args: argparse.Namespace) -> None:
    if args.device.startswith("cuda"):
        torch.cuda.synchronize()


def write_store(args: argparse.Namespace, folder: Path, shape: Any) -> tuple[Any, float]:
    from eyas.data.text.tokenise import TokenRow
    from eyas.store import StoreAbout, StoreRow, StoreWriter

    about = StoreAbout(
        target={}, hidden_size=shape.hidden, num_layers=max(shape.layers, *shape.boundaries), vocab_size=shape.vocab,
        boundaries=tuple(sorted({*shape.boundaries})), source="random", dtype="bfloat16",
    )  # fmt: skip
    draw, rows, keys, num_bytes = np.random.default_rng(0), [], [], 0
    flags = tuple(i >= args.seq // 2 for i in range(args.seq))
    values = torch.randn(args.seq, about.width).bfloat16().view(torch.int16).numpy().view("<u2")
    begin = time.perf_counter()
    with StoreWriter.open(folder, about) as writer:
        for number in range(args.rows):
            ids = draw.integers(0, shape.vocab, args.seq).astype(np.int32)
            row = StoreRow(token_ids=ids, states=np.roll(values, number, 0), is_supervised=np.array(flags))
            writer.append(row)
            keys.append(row.key)
            num_bytes += values.nbytes
            rows.append(TokenRow(tuple(ids.tolist()), flags, number))
    return SimpleNamespace(folder=folder, rows=rows, keys=keys, num_bytes=num_bytes), time.perf_counter() - begin


# ---- drafts


def drafts(args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    rows, common = folder / "rows", ["--device", args.device, "--target", args.target]
    eyas("prepare", "--target", args.target, "--data", args.data, "--out", rows, "--held-out", "0")
    records = []
    for name, dtype in (("live", None), ("store bf16", "bfloat16"), ("store fp8", "float8_e4m3")):
        given: list[Any] = []
        if dtype is not None:
            store = folder / "store"
            eyas("extract", *common, "--data", rows, "--out", store, "--store-dtype", dtype)
            given = ["--hidden-states", store]
        out = folder / name.replace(" ", "-")
        options = ["--tokens", args.tokens, "--eval-every", 0, *given]
        trained = eyas("train", *common, "--data", rows, "--out", out, *options)
        judged = eyas("eval", out, *common, "--data", args.judge, "-k", 5)
        records.append({"mode": "drafts", "arm": name, "tokens_per_s": trained["tokens_per_s"],
                        "states": trained.get("states"), "loss": trained["metrics"]["last"]["loss"],
                        "accept_length": judged["accept_length"], "per_position": judged["per_position"]})  # fmt: skip
        base.say(json.dumps(records[-1]))
        if dtype is not None:
            shutil.rmtree(folder / "store")
    for record in records[1:]:
        record["accept_length_over_live"] = record["accept_length"] - records[0]["accept_length"]
    return records


def eyas(*words: Any) -> Any:
    """One command; its last line as JSON. Raises where it fails."""
    command = [sys.executable, "-m", "eyas", *map(str, words), "--json"]
    base.say(" ".join(command[2:]))
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
