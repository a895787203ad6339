"""How fast and how small: `eyas convert` beside `cp`, `eyas check` and `eyas header` including Python's start.

    python benchmarks/contract_speed.py [--gigabytes 2] [--repeats 5] [--folder DIR] [--json]

Each arm runs in a process of its own, arms alternate, and the page cache is warm for all. `cp` ends when the kernel
has taken the bytes; `eyas convert` also waits for the disk (fsync) and reads everything again (audit). So `cp` is
measured alone and with `sync`, and the ratio is given for both. Time is wall time, memory the peak RSS of the process.
"""

import argparse
import json
import multiprocessing
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HIDDEN, INNER, HEADS, VOCAB = 4096, 14336, 32, 128256


def draft_shapes(draft_vocab: int) -> dict[str, tuple[str, list[int]]]:
    shapes: dict[str, tuple[str, list[int]]] = {
        "fc.weight": ("BF16", [HIDDEN, 3 * HIDDEN]),
        "norm.weight": ("BF16", [HIDDEN]),
        "lm_head.weight": ("BF16", [draft_vocab, HIDDEN]),
        "midlayer.self_attn.o_proj.weight": ("BF16", [HIDDEN, HIDDEN]),
        "midlayer.mlp.down_proj.weight": ("BF16", [HIDDEN, INNER]),
        "d2t": ("I64", [draft_vocab]),
        "t2d": ("BOOL", [VOCAB]),
    }
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        shapes[f"midlayer.{name}.weight"] = ("BF16", [HIDDEN])
    for name, rows in (("q", HIDDEN), ("k", HIDDEN // 4), ("v", HIDDEN // 4)):
        shapes[f"midlayer.self_attn.{name}_proj.weight"] = ("BF16", [rows, 2 * HIDDEN])
    for name in ("gate", "up"):
        shapes[f"midlayer.mlp.{name}_proj.weight"] = ("BF16", [INNER, HIDDEN])
    return shapes


def write_draft(folder: Path, num_bytes: int) -> None:
    """A draft of Llama-3.1-8B's shape with random bytes; the head is as tall as `num_bytes` wants."""
    body = 2 * (HIDDEN * 3 * HIDDEN + HIDDEN * HIDDEN + 3 * INNER * HIDDEN + (HIDDEN + HIDDEN // 2) * 2 * HIDDEN)
    draft_vocab = min(VOCAB - 1, max(1000, (num_bytes - body) // (2 * HIDDEN)))
    sizes = {"BF16": 2, "I64": 8, "BOOL": 1}
    header, at = {}, 0
    shapes = draft_shapes(draft_vocab)
    for name, (dtype, shape) in sorted(shapes.items(), key=lambda item: (-sizes[item[1][0]], item[0])):
        count = sizes[dtype]
        for size in shape:
            count *= size
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + count]}
        at += count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    noise = os.urandom(1 << 24)
    folder.mkdir()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, entry in header.items():
            length = entry["data_offsets"][1] - entry["data_offsets"][0]
            if name == "d2t":
                file.write(bytes(length))
            elif name == "t2d":
                file.write(b"\1" * draft_vocab + b"\0" * (VOCAB - draft_vocab))
            else:
                for begin in range(0, length, len(noise)):
                    file.write(noise[: min(len(noise), length - begin)])
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": VOCAB, "draft_vocab_size": draft_vocab, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "max_position_embeddings": 2048, "tie_word_embeddings": False, "hidden_act": "silu",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def write_target(folder: Path) -> None:
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": 32,
        "num_attention_heads": HEADS, "vocab_size": VOCAB, "max_position_embeddings": 131072, "rope_theta": 500000.0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def run(command: list[str], accepted: tuple[int, ...] = (0,)) -> tuple[float, float, int]:
    """Wall seconds, CPU seconds and peak RSS in kB of one process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    message = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    spent = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    assert process.returncode in accepted, f"{command}: {process.returncode}\n{message.decode()}"
    return spent, usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} s (min {min(values):.3f}, max {max(values):.3f})"


def measure_convert(root: Path, num_bytes: int, repeats: int) -> dict[str, object]:
    draft, out, target = root / "draft", root / "out", root / "target"
    # in a child: a process inherits the peak RSS of the one that starts it
    maker = multiprocessing.get_context("fork").Process(target=write_draft, args=(draft, num_bytes))
    maker.start()
    maker.join()
    size = (draft / "model.safetensors").stat().st_size
    write_target(target)
    eyas = [sys.executable, "-m", "eyas"]
    arms = {
        "cp": ["cp", "-r", str(draft), str(out)],
        "cp + sync": ["sh", "-c", f"cp -r '{draft}' '{out}' && sync '{out}/model.safetensors'"],
        "convert to speculators": [
            *eyas,
            "convert",
            str(draft),
            str(out),
            "--to",
            "speculators",
            "--target",
            str(target),
        ],
        "convert to eagle (.bin)": [*eyas, "convert", str(draft), str(out), "--to", "eagle", "--target", str(target)],
    }
    times: dict[str, list[float]] = {name: [] for name in arms}
    cpu_times: dict[str, list[float]] = {name: [] for name in arms}
    memory: dict[str, int] = dict.fromkeys(arms, 0)
    for repeat in range(repeats + 1):
        for name, command in arms.items():
            shutil.rmtree(out, ignore_errors=True)
            os.sync()
            spent, cpu, kilobytes = run(command)
            if repeat:  # the first round warms the page cache
                times[name].append(spent)
                cpu_times[name].append(cpu)
                memory[name] = max(memory[name], kilobytes)
    shutil.rmtree(out, ignore_errors=True)
    print(f"{size / 1e9:.2f} GB, {repeats} repeats, median wall time")
    for name in arms:
        middle = statistics.median(times[name])
        rates = {other: statistics.median(times[other]) / middle for other in ("cp", "cp + sync")}
        print(
            f"  {name:<26} {spread(times[name])}  CPU {statistics.median(cpu_times[name]):.2f} s"
            f"  {size / middle / 1e6:.0f} MB/s  {memory[name] / 1000:.0f} MB RSS"
            f"  {100 * rates['cp']:.0f} % of cp, {100 * rates['cp + sync']:.0f} % of cp + sync"
        )
    return {"num_bytes": size, "times_s": times, "cpu_s": cpu_times, "rss_kb": memory}


def measure_reading(root: Path, repeats: int) -> dict[str, object]:
    eyas, draft, target = [sys.executable, "-m", "eyas"], root / "draft", root / "target"
    engines = ["--for", "sglang==0.5.23", "--for", "vllm==0.33.0"]
    arms = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "eyas header": [*eyas, "header", str(draft)],
        "eyas check": [*eyas, "check", str(draft), "--target", str(target), *engines],
        "eyas convert --dry-run": [
            *eyas, "convert", str(draft), "--to", "speculators", "--target", str(target), "--dry-run",
        ],
    }  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in arms}
    cpu_times: dict[str, list[float]] = {name: [] for name in arms}
    memory: dict[str, int] = dict.fromkeys(arms, 0)
    for repeat in range(repeats + 1):
        for name, command in arms.items():
            spent, cpu, kilobytes = run(command, accepted=(0, 1))
            if repeat:
                times[name].append(spent)
                cpu_times[name].append(cpu)
                memory[name] = max(memory[name], kilobytes)
    print(f"reading headers and integer maps ({VOCAB} + {VOCAB - 1} entries), Python's start included")
    for name in arms:
        cpu_s = statistics.median(cpu_times[name])
        print(f"  {name:<26} {spread(times[name])}  CPU {cpu_s:.2f} s  {memory[name] / 1000:.0f} MB RSS")
    return {"times_s": times, "cpu_s": cpu_times, "rss_kb": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        root = Path(folder)
        converted = measure_convert(root, int(options.gigabytes * 1e9), options.repeats)
        read = measure_reading(root, max(10, options.repeats))
    machine = (
        f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    )
    print(machine)
    if options.json:
        print(json.dumps({"schema": "eyas.benchmark/1", "machine": machine, "convert": converted, "read": read}))


if __name__ == "__main__":
    main()
