"""The worst drafts of the damage matrix, served by a real engine on one GPU: counts predicted, and served.

    python3 benchmarks/stress_h200.py vllm --pythonpath SITE --out $OUT
    python3 benchmarks/stress_h200.py sglang --pythonpath SITE:SITE/nvidia_cutlass_dsl/python_packages --out $OUT

Spoils the stress pair's draft as every row of the matrix says, predicts each row that the engine loads, takes the
intact one, the twelve worst whose predictions differ and a few milder ones, lets the engine serve them (several
processes at a time on one GPU, without CUDA graphs), replays the ids that came back, and compares.
Engine folders: see serve_gpu.py. Needs cyclopts.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import torch

import damage_matrix
import stress_pair
from eyas.errors import EyasError
from eyas.models.placement import place
from eyas.models.target import LiveStates, Target
from eyas.replay.emulate import emulate
from eyas.replay.replay import replay_states
from eyas.replay.states import KeptStates
from eyas.talk import Silent
from stress_served import Judged, as_stored, judge, ledger_of, loads

# Of each engine: version, base of its layer ids, draft (SGLang puts the target's embedding into every draft), share of
# the GPU's memory, engines in one process. SGLang's share is of what is free, and its cache is small by other means.
ENGINES: dict[str, tuple[str, int, Path, str, int]] = {
    "vllm": ("vllm==0.25.1", 0, stress_pair.DRAFT, "0.05", 3),
    "sglang": ("sglang==0.5.15.post1", 1, stress_pair.SHARED, "0.4", 1),
}
NUM_WORST, EVERY_MILDER = 12, 5


def main() -> int:
    """Predict, serve, compare; 0 if every row is served as predicted."""
    arguments = parse()
    label, id_base, base, memory, per_process = ENGINES[arguments.engine]
    label = arguments.label or label
    began, work = time.monotonic(), Path(tempfile.mkdtemp(prefix="stress-"))
    target = Target.load(stress_pair.TARGET, place(arguments.dtype, "cuda" if torch.cuda.is_available() else "cpu"))
    for row in damage_matrix.ROWS:
        stress_pair.write_row(row, work / row, base=base, id_base=id_base)
    rows = arguments.rows.split(",") if arguments.rows else worst(work, target, label, arguments.k)
    print(f"{label}: {', '.join(rows)} ({time.monotonic() - began:.0f} s)", flush=True)
    served = serve(arguments, work, rows, memory, per_process)
    table, judged = [], {}
    for row in rows:
        found = served.get(row, {"error": "the process ended without an answer"})
        if "error" in found:
            table.append(f"| {row} | {found['error'][:150]} |")
            judged[row] = {"as_predicted": False, "error": found["error"]}
            continue
        one = judge(work / row, stress_pair.TARGET, target, label, found, stress_pair.prompts(), arguments.dtype)
        table.append(line(row, one))
        judged[row] = document(one) | {"as_predicted": one.is_as_predicted}
    print("\n".join([HEAD, "|" + "---|" * len(COLUMNS), *table]))
    record = {"engine": label, "k": arguments.k, "dtype": arguments.dtype, "rows": judged, "served": served}
    Path(arguments.out).mkdir(parents=True, exist_ok=True)
    (Path(arguments.out) / f"stress_{arguments.engine}.json").write_text(json.dumps(record))
    good = sum(one["as_predicted"] for one in judged.values())
    print(f"{good} of {len(rows)} as predicted, {time.monotonic() - began:.0f} s in all")
    return 0 if good == len(rows) else 1


@torch.no_grad()
def worst(work: Path, target: Target, label: str, k: int) -> list[str]:
    """The intact row, the rows that cost most, some of the others; of rows with the same prediction the first."""
    states, rows = KeptStates(LiveStates(target)), stress_pair.prompts()
    given = {"embedding": target.parts.embedding, "head": target.parts.head}
    found: dict[tuple[int, ...], tuple[float, str]] = {}
    for row in damage_matrix.ROWS:
        try:
            ledger = ledger_of(work / row, stress_pair.TARGET, label)
            if ledger.verdict in ("refuses", "crash") or not loads(ledger):
                continue
            seen = emulate(as_stored(work / row, stress_pair.TARGET, target), ledger, "normal", target=given).draft
        except EyasError:
            continue
        rounds = [n for one in replay_states(states, seen, rows, k, Silent(), batch_tokens=4096) for n in one.accepted]
        counts = (len(rounds), *(sum(n > i for n in rounds) for i in range(k)))
        found.setdefault(counts, (sum(counts) / len(rounds), row))
    by_length = [row for _, row in sorted(found.values()) if row != "intact"]
    return ["intact", *by_length[:NUM_WORST], *by_length[NUM_WORST::EVERY_MILDER]]


def serve(arguments: argparse.Namespace, work: Path, rows: list[str], memory: str, per_process: int) -> dict[str, Any]:
    """All rows, `per_process` in a process, all processes at a time."""
    prompts = work / "prompts.json"
    prompts.write_text(json.dumps([list(row.prompt_ids) for row in stress_pair.prompts()]))
    paths = [p for p in (arguments.pythonpath, os.environ.get("PYTHONPATH")) if p]
    environment = {**os.environ, "PYTHONPATH": ":".join(paths), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}
    running = []
    for number, part in enumerate(rows[i : i + per_process] for i in range(0, len(rows), per_process)):
        words = ["--target", str(stress_pair.TARGET), "--drafts", str(work), "--prompts", str(prompts)]
        words += ["--out", str(work / f"served{number}.json"), "-k", str(arguments.k), "--dtype", arguments.dtype]
        words += ["--memory", memory, "--port", str(31000 + 300 * number), "--only", ",".join(part)]
        words += ["--cache-mib", "256"] if torch.cuda.is_available() else []
        command = [arguments.python, str(Path(__file__).with_name("stress_engine.py")), arguments.engine, *words]
        log = (work / f"log{number}").open("wb")
        running.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True))
    end, served = time.monotonic() + arguments.limit_s, {}
    for number, process in enumerate(running):
        try:
            process.wait(max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
        if (work / f"served{number}.json").exists():
            served |= json.loads((work / f"served{number}.json").read_text())
        if process.returncode or any("error" in one for one in served.values()):
            print((work / f"log{number}").read_text(errors="replace")[-1500:], flush=True)
    return served


COLUMNS = ("row", "predicted", "served", "rounds", "predicted at 1 … K", "served at", "largest", "near-ties", "verdict")
HEAD = f"| {' | '.join(COLUMNS)} |"


def line(row: str, found: Judged) -> str:
    """One row of the table; of a range its ends."""
    ours, served = [one.replayed for one in found.by_fill.values()], found.served
    lengths = sorted({f"{one.accept_length:.3f}" for one in ours})
    share = min(one.largest_share for one in found.by_fill.values())
    cells = [
        row,
        " … ".join(dict.fromkeys([lengths[0], lengths[-1]])),
        f"{served.accept_length:.3f}",
        str(served.rounds),
        " or ".join(dict.fromkeys(" ".join(map(str, one.accepted_at)) for one in ours)),
        " ".join(map(str, served.accepted_at)),
        f"{100 * share:.2f} %",
        str(max(one.near_ties for one in found.by_fill.values())),
        "as predicted" if found.is_as_predicted else "DIFFERENT",
    ]
    return f"| {' | '.join(cells)} |"


def document(found: Judged) -> dict[str, Any]:
    """The comparison as a JSON object."""
    return {
        fill: {
            "verdict": one.verdict,
            "predicted": [one.replayed.rounds, *one.replayed.accepted_at],
            "served": [one.served.rounds, *one.served.accepted_at],
            "near_ties": one.near_ties,
            "largest_share": one.largest_share,
        }
        for fill, one in found.by_fill.items()
    }


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=sorted(ENGINES))
    parser.add_argument("--out", required=True)
    parser.add_argument("--pythonpath", help="folder(s) with the engine unpacked")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the engine")
    parser.add_argument("--label", help="engine==version, if it is another one")
    parser.add_argument("--rows", help="comma-separated rows in place of the worst")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("-k", type=int, default=5)
    parser.add_argument("--limit-s", type=float, default=170.0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
