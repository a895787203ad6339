"""Kills a training at random moments, starts it again each time, and compares the end with an undisturbed run.

    python tests/support/training_soak.py --kills 20                   tiny target, CPU: bit-identical
    python tests/support/training_soak.py --kills 5 --device cuda      on a GPU: within --tolerance

Each life is a fork of this process, which has imported everything and computed nothing. The last line is JSON.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

# Asking the driver itself would initialise it in this process, and no fork could use the GPU.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import transformers  # noqa: F401  imported once here, not in each life

from eyas.cli.app import main as eyas
from eyas.data.rows.row_store import Rows
from eyas.records.checkpoint import METRICS, STATE, resume_folder
from eyas.records.eval_rows import EvalRow, write_eval_rows
from eyas.train.run import train as _train  # noqa: F401  the same
from train_run_folder import make_run_folder

_STEPS_PER_LIFE = 15
_AT_STARTS = 0.3  # share of the kills that come while a life begins, wherever that is


def start(arguments: list[str], log: Path) -> int:
    """Fork a life; gives its pid."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with log.open("a") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
                sys.stdout = sys.stderr = file
                status = eyas(arguments)
        finally:
            os._exit(status)  # whatever happens: nothing else of this process may go on twice
    return pid


def steps_kept(out: Path) -> int:
    """As the checkpoint says."""
    try:
        step: int = json.loads((resume_folder(out) / STATE).read_text())["step"]
    except FileNotFoundError:
        return 0
    return step


def kill_at_random(
    arguments: list[str], out: Path, log: Path, chance: random.Random, meanwhile: Callable[[], None] | None
) -> None:
    """One life: killed up to a few steps after it went on, or while it starts.

    Args:
        meanwhile: called when half of these steps are done; what it kills must not end the life.
    """
    is_at_start = chance.random() < _AT_STARTS
    wanted = 0 if is_at_start else steps_kept(out) + chance.randrange(1, _STEPS_PER_LIFE // 2)
    pid = start(arguments, log)
    half = (steps_kept(out) + wanted) // 2
    while steps_kept(out) < wanted:
        if meanwhile is not None and steps_kept(out) >= half:
            meanwhile()
            meanwhile = None
        if os.waitpid(pid, os.WNOHANG) != (0, 0):
            sys.exit(f"a life ended by itself:\n{log.read_text()[-3000:]}")
        time.sleep(0.001)
    time.sleep(chance.random() * (0.3 if is_at_start else 0.02))
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"the run had ended before the kill:\n{log.read_text()[-3000:]}"


def finish(arguments: list[str], log: Path) -> None:
    """One life to the end."""
    _, status = os.waitpid(start(arguments, log), 0)
    assert status == 0, log.read_text()[-3000:]


def curve(out: Path) -> list[tuple[float, ...]]:
    """What must be the same: tokens, loss, norm of each step; step and accept length of each replay."""
    records = [json.loads(line) for line in (out / METRICS).read_text().splitlines()]
    return [
        (r["tokens"], r["loss"], r["grad_norm"]) if "loss" in r else (r["step"], r["accept_length"]) for r in records
    ]


def largest_difference(one: list[tuple[float, ...]], two: list[tuple[float, ...]]) -> float:
    """Relative, over all numbers of two curves of the same form."""
    assert [len(a) for a in one] == [len(b) for b in two], "one record for each step and replay"
    pairs = [(a, b) for left, right in zip(one, two, strict=True) for a, b in zip(left, right, strict=True)]
    return max(abs(a - b) / max(abs(a), abs(b), 1e-9) for a, b in pairs)


def inputs_in(folder: Path) -> tuple[Path, Path]:
    """A tiny target and its rows, some of them held out as well."""
    target, rows = make_run_folder(folder)
    kept = [row.token_ids for row in Rows(rows)][:4]
    write_eval_rows(
        [EvalRow(id=str(i), set="h", prompt_ids=ids[:10], response_ids=ids[10:]) for i, ids in enumerate(kept)],
        rows / "held_out.jsonl",
    )
    return target, rows


def soak(
    options: argparse.Namespace,
    folder: Path,
    given: Callable[[Path, Path], list[str]] = lambda target, rows: [],
    meanwhile: Callable[[], None] | None = None,
) -> dict[str, object]:
    """Both runs and their comparison.

    Args:
        given: target and rows -> further arguments, such as where their states are.
        meanwhile: see `kill_at_random`; not in the undisturbed run.
    """
    target, rows = (options.target, options.rows) if options.target else inputs_in(folder)
    steps = _STEPS_PER_LIFE * (options.kills + 1)
    arguments = [
        *["train", "--target", str(target), "--data", str(rows), "--device", options.device, "--threads", "1"],
        *["--steps", str(steps), "--batch-tokens", str(options.batch_tokens), "--ttt-steps", "3"],
        *["--draft-vocab-size", "32", "--eval-every", "7"],
        *given(Path(target), Path(rows)),
    ]
    whole, killed, log = folder / "whole", folder / "killed", folder / "log"
    finish([*arguments, "--out", str(whole), "--checkpoint-every-s", "0"], log)
    chance, often = random.Random(options.seed), [*arguments, "--out", str(killed), "--checkpoint-every-s", "1e-9"]
    for number in range(options.kills):
        kill_at_random(often, killed, log, chance, meanwhile)
        assert not killed.exists(), "a killed run leaves no draft"
        print(f"kill {number + 1} of {options.kills}: {steps_kept(killed)} of {steps} steps kept", file=sys.stderr)
    finish(often, log)
    weights = [(out / "model.safetensors").read_bytes() for out in (whole, killed)]
    leavings = sorted(p.name for p in folder.iterdir() if "part" in p.name or "resume" in p.name)
    return {
        "schema": "eyas.soak/1",
        "kills": options.kills,
        "steps": steps,
        "device": options.device,
        "is_curve_identical": curve(whole) == curve(killed),
        "are_weights_identical": weights[0] == weights[1],
        "largest_relative_difference": largest_difference(curve(whole), curve(killed)),
        "leavings": leavings,
    }


def main() -> int:
    """Exit code 1 when the runs differ by more than allowed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tolerance", type=float, default=0.05, help="relative, on a GPU; on a CPU it is 0")
    parser.add_argument("--target", help="instead of the tiny one; with --rows")
    parser.add_argument("--rows")
    parser.add_argument("--batch-tokens", type=int, default=150)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = soak(options, Path(folder))
    is_cpu = options.device == "cpu"
    is_same = found["is_curve_identical"] and found["are_weights_identical"]
    is_close = float(str(found["largest_relative_difference"])) <= options.tolerance
    found["is_good"] = bool((is_same if is_cpu else is_close) and not found["leavings"])
    found["allowed_difference"] = 0.0 if is_cpu else options.tolerance
    print(json.dumps(found))
    return 0 if found["is_good"] else 1


if __name__ == "__main__":
    sys.exit(main())
