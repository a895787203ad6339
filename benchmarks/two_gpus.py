"""What only several GPUs show: tensor- and data-parallel serving to the verdict, and stalls that are made on purpose.

    python3 benchmarks/two_gpus.py vllm --pythonpath SITE --target T --draft D --out $OUT [--cases C...]

Each case is one `eyas serve` with `--patience` (budgets of phases times that factor), so that a stall is called in the
minutes that a borrowed machine lasts. A meddler follows the run folder's events and, in the named phase, stops a rank
(SIGSTOP), kills one (SIGKILL), or nothing: then the environment is what is wrong. results.json holds for each case what
eyas said, when, and how long after the phase's budget; the run folders' logs and events become fixtures.
Engine folders and flags: see serve_gpu.py. The target's heads must divide by 2 (SmolLM2's nine do not). `port-blocked`
changes the machine's routes, so it has to be named and runs alone. Without a GPU: --pythonpath of the engine without a
model of the tests (tests/support/stub_engine.py).
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from serve_gpu import ENGINES

_SOURCES = Path(__file__).resolve().parents[1] / "src"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One launch.

    Attributes:
        wants: state at the end that counts as seen.
        flags: of eyas serve. environment: of the engine.
        when: the phase in which `act` is done to rank 1; None = nothing is done.
        act: signal to rank 1. resume_s: SIGCONT after so many seconds (0 = never).
    """

    wants: str
    flags: tuple[str, ...] = ("--tensor-parallel", "2")
    environment: dict[str, str] = field(default_factory=dict)
    when: str | None = None
    act: int = 0
    resume_s: float = 0.0


CASES = {
    "tp2": Case(wants="proven"),
    "dp2": Case(wants="proven", flags=("--data-parallel", "2")),
    "no-peer-access": Case(wants="proven", environment={"NCCL_P2P_DISABLE": "1"}),
    "wrong-interface": Case(wants="crashed", environment={"NCCL_SOCKET_IFNAME": "eth9", "GLOO_SOCKET_IFNAME": "eth9"}),
    "rank-stopped-in-weights": Case(wants="stalled", when="weights", act=signal.SIGSTOP),
    "rank-stopped-in-distributed": Case(wants="stalled", when="distributed", act=signal.SIGSTOP),
    "rank-stopped-in-graphs": Case(wants="stalled", when="graphs", act=signal.SIGSTOP),
    "rank-late-in-graphs": Case(wants="proven", when="graphs", act=signal.SIGSTOP, resume_s=25),
    "rank-killed-in-weights": Case(wants="crashed", when="weights", act=signal.SIGKILL),
    "rank-killed-when-ready": Case(wants="crashed", when="ready", act=signal.SIGKILL),
    "rank-stopped-when-ready": Case(wants="stalled", when="ready", act=signal.SIGSTOP),
    "port-blocked": Case(
        wants="stalled",
        environment={"NCCL_SOCKET_IFNAME": "eyas0", "GLOO_SOCKET_IFNAME": "eyas0", "VLLM_HOST_IP": "10.255.9.9"},
    ),
    "retry": Case(wants="proven", flags=("--tensor-parallel", "2", "--retry"), when="graphs", act=signal.SIGSTOP),
}
_BLOCKED = "10.255.9.9"
_RANK_ONE = re.compile(r"TP1|_TP1|Worker_TP1|scheduler_TP1|DP1")


def main() -> int:
    """All cases, several at once; 0 if each ended in the state that was expected."""
    arguments = parse()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    lock = threading.Lock()

    def do(place: int, name: str) -> None:
        row = one(name, arguments.port + 40 * place, out / "work" / name, arguments)
        with lock:
            rows.append(row)
            (out / "results.json").write_text(json.dumps(rows, indent=1))
            print(f"{name}: {row['state']} (wanted {row['wants']}); {row['said'][:300]}", flush=True)

    with ThreadPoolExecutor(arguments.at_once) as pool:
        for done in [pool.submit(do, i, name) for i, name in enumerate(arguments.cases)]:
            done.result()
    with tarfile.open(out / "runs.tar.xz", "w:xz") as tar:
        for path in sorted((out / "work").rglob("*")):
            if path.is_file() and path.stat().st_size < 4 << 20 and "cache" not in path.parts:
                tar.add(path, path.relative_to(out / "work"))
    return 0 if all(row["state"] == row["wants"] for row in rows) else 1


def one(name: str, port: int, out: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Serve once, meddle, and read what eyas said."""
    case = CASES[name]
    out.mkdir(parents=True, exist_ok=True)
    flags, variables = ENGINES[arguments.engine]
    engine_flags = (arguments.flags or flags).split()
    words = [
        *(sys.executable, "-m", "eyas", "serve", "--engine", arguments.engine, "--target", arguments.target),
        *("--draft", arguments.draft, "--port", str(port), "--patience", str(arguments.patience)),
        *("--runs", str(out / "runs"), "--context-length", "512", "--verdict-rounds", "60", "--verdict-seconds", "60"),
        *("--stop-after-verdict", "--json", *case.flags),
        *(("--pythonpath", arguments.pythonpath) if arguments.pythonpath else ()),
        *(word for code in arguments.force for word in ("--force", code)),
        *("--", *engine_flags),
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **variables, **case.environment}
    environment["PYTHONPATH"] = f"{_SOURCES}:{environment.get('PYTHONPATH', '')}"
    environment["XDG_CACHE_HOME"] = str(out / "cache")
    began = time.monotonic()
    unblock = block_port() if name == "port-blocked" else lambda: None
    with (out / "eyas.out").open("wb") as stdout, (out / "eyas.err").open("wb") as stderr:
        process = subprocess.Popen(words, stdout=stdout, stderr=stderr, env=environment)
        meddler = Meddler(case, out / "runs", process)
        meddler.start()
        try:
            code = process.wait(arguments.limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            code = process.wait(60)
        meddler.is_over = True
    unblock()
    row = {"case": name, "engine": arguments.engine, "wants": case.wants, "exit": code}
    return row | read(out, meddler) | {"total_s": round(time.monotonic() - began, 1)}


def block_port() -> Callable[[], None]:
    """Make packets to this machine's own address vanish, as a firewall between ranks does; returns what undoes it.

    On one host the ranks meet over a dummy interface whose local route is taken away: connecting hangs.
    """
    steps = (
        "ip link add eyas0 type dummy",
        f"ip addr add {_BLOCKED}/32 dev eyas0",
        "ip link set eyas0 up",
        f"ip route del local {_BLOCKED} dev eyas0 table local",
        f"ip route add {_BLOCKED}/32 dev eyas0",
    )
    for step in steps:
        subprocess.run(step.split(), check=True)
    return lambda: subprocess.run(["ip", "link", "del", "eyas0"], check=False) and None


class Meddler(threading.Thread):
    """Waits for the phase, then does to rank 1 what the case says."""

    def __init__(self, case: Case, runs: Path, process: "subprocess.Popen[bytes]") -> None:
        super().__init__(daemon=True)
        self._case, self._runs, self._process = case, runs, process
        self.is_over = False
        self.did: list[dict[str, Any]] = []

    def run(self) -> None:
        """Poll the events until the phase comes."""
        if self._case.when is None:
            return
        while not self.is_over:
            if self._is_there() and (pid := rank_one(self._process.pid)) is not None:
                self._do(pid)
                return
            time.sleep(0.1)

    def _is_there(self) -> bool:
        for path in self._runs.glob("*/events.jsonl"):
            for line in path.read_text(errors="replace").splitlines():
                event = json.loads(line) if line.endswith("}") else {}
                phase = str(event.get("data", {}).get("phase", ""))
                named = event.get("state") if self._case.when == "ready" else phase.split(":")[0]
                if event.get("kind") in ("phase", "progress", "state") and named == self._case.when:
                    return True
        return False

    def _do(self, pid: int) -> None:
        os.kill(pid, self._case.act)
        self.did.append({"at": time.time(), "pid": pid, "signal": signal.Signals(self._case.act).name})
        if self._case.resume_s:
            time.sleep(self._case.resume_s)
            os.kill(pid, signal.SIGCONT)
            self.did.append({"at": time.time(), "pid": pid, "signal": "SIGCONT"})


def rank_one(root: int) -> int | None:
    """The process of the second rank among what `root` started, by its title."""
    import psutil

    for child in psutil.Process(root).children(recursive=True):
        try:
            if _RANK_ONE.search(" ".join(child.cmdline())):
                return child.pid
        except psutil.Error:
            continue
    return None


def read(out: Path, meddler: Meddler) -> dict[str, Any]:
    """What the run folder and the last line say."""
    lines = (out / "eyas.out").read_text(errors="replace").strip().splitlines()
    document = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    snapshot = document.get("snapshot") or {}
    events: list[dict[str, Any]] = []
    for path in sorted(out.glob("runs/*/events.jsonl")):
        events += [json.loads(line) for line in path.read_text(errors="replace").splitlines() if line.endswith("}")]
    verdict = document.get("verdict") or {}
    did = meddler.did[0]["at"] if meddler.did else None
    told = next((e["at"] for e in events if e["kind"] == "state" and e["state"] in ("stalled", "crashed")), None)
    return {
        "state": snapshot.get("state", "none"),
        "said": snapshot.get("reason") or (out / "eyas.err").read_text(errors="replace")[-600:],
        "stall": snapshot.get("stall"),
        "cause": snapshot.get("cause"),
        "did": meddler.did,
        "told_after_s": None if did is None or told is None else round(told - did, 1),
        "ready_s": document.get("ready_s"),
        "verdict": verdict.get("words"),
        "acceptance": verdict.get("acceptance"),
        "states": [[e["state"], round(e["elapsed_s"], 1), e["text"][:300]] for e in events if e["kind"] == "state"],
        "attempts": document.get("attempts"),
    }


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=sorted(ENGINES))
    parser.add_argument("--out", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--pythonpath")
    parser.add_argument("--flags", help="engine flags instead of the fast ones")
    parser.add_argument("--force", nargs="*", default=[], help="diagnostic codes to overrule")
    parser.add_argument("--cases", nargs="+", default=[c for c in CASES if c != "port-blocked"], choices=list(CASES))
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--patience", type=float, default=0.25)
    parser.add_argument("--port", type=int, default=18300)
    parser.add_argument("--limit-s", type=float, default=240.0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
