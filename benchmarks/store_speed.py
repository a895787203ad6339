"""How fast a store of states is written and read, beside the plain speed of its disk in the same run.

python benchmarks/store_speed.py --folder /data/tmp --gb 8 --out store_speed.json
python benchmarks/store_speed.py --folder /tmp --gb 0.05          # every line of it, in seconds

Written: rows of 2048 tokens at the shape of Llama-3.1-8B (three boundaries and the last state, bf16: 32 KiB a token)
through `StoreWriter`, beside plain writes of the same bytes. Read: all rows once in random order through `StoreReader`
(prefetch one row ahead, copy out of the map), beside reads of the same files from start to end in blocks of 16 MiB.
The page cache is emptied before each reading arm (`posix_fadvise`; says how much stayed). The last line is JSON.
"""

import argparse
import json
import mmap
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from eyas.store import StoreAbout, StoreReader, StoreRow, StoreWriter

ROW_TOKENS = 2048
BLOCK = 16 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="on the disk to be measured")
    parser.add_argument("--gb", type=float, default=8.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    found = measure(args.folder, args.gb, args.repeats)
    text = json.dumps(found)
    if args.out is not None:
        args.out.write_text(text + "\n")
    print(text)


def about(hidden: int = 4096) -> StoreAbout:
    return StoreAbout(
        target={"architectures": ["LlamaForCausalLM"]},
        hidden_size=hidden,
        num_layers=32,
        vocab_size=128_256,
        boundaries=(2, 16, 29),
        source="made-up==1",
    )


def measure(folder: Path, gb: float, repeats: int) -> dict[str, Any]:
    """All arms; what they write is removed."""
    place = folder / f"eyas-store-speed-{os.getpid()}"
    place.mkdir()
    try:
        num_rows = max(2, int(gb * 1e9 / (ROW_TOKENS * about().position_bytes)))
        found: dict[str, Any] = {"schema": "eyas.store-speed/1", "rows": num_rows, "row_tokens": ROW_TOKENS}
        found["write_store_gb_s"] = write_store(place / "store", num_rows)
        found["write_plain_gb_s"] = write_plain(place / "plain", num_rows)
        files = sorted((place / "store").glob("*.safetensors"))
        reads: dict[str, list[float]] = {"plain": [], "store": []}
        left = list[float]()
        for _ in range(repeats):
            for arm, read in (("plain", read_plain), ("store", read_rows)):
                left.append(empty_cache(files))
                num_bytes, seconds = timed(lambda read=read: read(place / "store", files))  # type: ignore[misc]
                reads[arm].append(num_bytes / seconds / 1e9)
                say(f"{arm}: {reads[arm][-1]:.2f} GB/s (cached before: {left[-1]:.1%})")
        found |= {f"read_{arm}_gb_s": sorted(values) for arm, values in reads.items()}
        found["cached_before_reading"] = max(left)
        shares = sorted(store / plain for store, plain in zip(reads["store"], reads["plain"], strict=True))
        found |= {"read_shares": shares, "read_share": shares[repeats // 2]}
        say(
            f"rows in random order at {found['read_share']:.0%} ({shares[0]:.0%} - {shares[-1]:.0%}) of the speed of"
            " reading from start to end, pair by pair"
        )
        return found
    finally:
        shutil.rmtree(place)


def write_store(folder: Path, num_rows: int) -> float:
    kind = about()
    draw = np.random.default_rng(0)
    states = draw.integers(0, 1 << 16, (ROW_TOKENS, kind.width), np.uint16)
    started = time.perf_counter()
    with StoreWriter.open(folder, kind) as writer:
        for _ in range(num_rows):
            ids = draw.integers(0, kind.vocab_size, ROW_TOKENS).astype(np.int32)
            writer.append(StoreRow(token_ids=ids, states=states))
    seconds = time.perf_counter() - started
    say(f"written through the store: {num_rows * states.nbytes / seconds / 1e9:.2f} GB/s")
    return num_rows * states.nbytes / seconds / 1e9


def write_plain(path: Path, num_rows: int) -> float:
    states = np.random.default_rng(0).integers(0, 1 << 16, (ROW_TOKENS, about().width), np.uint16)
    started = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for number in range(num_rows):
            file.write(states.data)
            if number % 16 == 15:  # as often as a shard of 1 GB is finished
                os.fsync(file.fileno())
        os.fsync(file.fileno())
    seconds = time.perf_counter() - started
    path.unlink()
    say(f"written plainly: {num_rows * states.nbytes / seconds / 1e9:.2f} GB/s")
    return num_rows * states.nbytes / seconds / 1e9


def empty_cache(files: list[Path]) -> float:
    """Let the system forget `files`; the share of their pages that it kept."""
    kept = total = 0
    for path in files:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                pages = -(-len(mapped) // mmap.PAGESIZE)
                total += pages
                kept += resident_pages(mapped, pages)
    return kept / max(total, 1)


def resident_pages(mapped: mmap.mmap, pages: int) -> int:
    import ctypes

    flags = (ctypes.c_ubyte * pages)()
    at = np.frombuffer(mapped, np.uint8)
    failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(at.ctypes.data), ctypes.c_size_t(len(at)), flags)
    del at
    return pages if failed else int((np.frombuffer(flags, np.uint8) & 1).sum())


def read_plain(_: Path, files: list[Path]) -> int:
    block, num = bytearray(BLOCK), 0
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while got := file.readinto(block):
                num += got
    return num


def read_rows(folder: Path, _: list[Path]) -> int:
    reader = StoreReader.open(folder)
    order = np.random.default_rng(1).permutation(len(reader)).tolist()
    into = np.empty((ROW_TOKENS, reader.about.width), reader.about.numpy_dtype)
    num = 0
    for at, number in enumerate(order):
        for ahead in order[at : at + 3]:
            reader.prefetch(ahead)
        row = reader.row(number)
        np.copyto(into[: len(row.states)], row.states)
        num += row.states.nbytes
    return num


def timed(read: Any) -> tuple[int, float]:
    started = time.perf_counter()
    return read(), time.perf_counter() - started


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
